"""`GenerationMixin._beam_search` of transformers 5.23 in NumPy, of one prompt: beams are plain lists of ids, and every
step ranks their whole vocabularies.

Steps, names and constants are those of the original, so that the two can be read side by side.
`tests/jaxengine/request/test_beams.py` compares what both find.
"""

from collections.abc import Callable
from collections.abc import Sequence as Ids
from typing import NamedTuple

import numpy as np

from jaxengine.request.beam_search import BeamSearch

NEVER = -1e9
Logprobs = Callable[[list[int]], np.ndarray]  # f [V], of what comes behind the ids that were generated


class Searched(NamedTuple):
    """
    answers: generated ids and the score, the best first.
    steps: the beams after each step but the last, the best first.
    """

    answers: list[tuple[list[int], float]]
    steps: list[list[list[int]]]


def beam_search(logprobs: Logprobs, search: BeamSearch, max_tokens: int, ends: Ids[int]) -> Searched:
    num_beams, early_stopping = search.width, search.early_stopping
    beams_to_keep = max(2, 1 + len(ends)) * num_beams
    top_num_beam_mask = np.arange(beams_to_keep) < num_beams
    running_sequences: list[list[int]] = [[]] * num_beams
    running_beam_scores = np.where(np.arange(num_beams) == 0, 0.0, NEVER)
    sequences: list[list[int]] = [[]] * num_beams
    beam_scores = np.full(num_beams, NEVER)
    is_sent_finished = np.zeros(num_beams, bool)
    may_improve, steps = True, []
    for length in range(1, max_tokens + 1):
        table = np.stack([logprobs(ids) for ids in running_sequences])
        log_probs = (table + running_beam_scores[:, None]).ravel()
        topk_indices = _topk(log_probs, beams_to_keep)
        topk_log_probs = log_probs[topk_indices]
        parents, ids = np.divmod(topk_indices, table.shape[1])
        topk_sequences = [running_sequences[parent] + [id] for parent, id in zip(parents, ids.tolist(), strict=True)]
        hits = np.isin(ids, ends) | (length == max_tokens)

        topk_running = topk_log_probs + hits * NEVER
        chosen = _topk(topk_running, num_beams)
        running_sequences, running_beam_scores = [topk_sequences[i] for i in chosen], topk_running[chosen]

        scores = topk_log_probs / length**search.length_penalty
        scores += (is_sent_finished.all() and early_stopping is True) * NEVER
        scores += (not may_improve) * NEVER
        just_finished = hits & top_num_beam_mask
        scores += ~just_finished * NEVER
        merged_scores = np.concatenate([beam_scores, scores])
        merged_sequences, merged_finished = sequences + topk_sequences, np.append(is_sent_finished, just_finished)
        chosen = _topk(merged_scores, num_beams)
        sequences, beam_scores = [merged_sequences[i] for i in chosen], merged_scores[chosen]
        is_sent_finished = merged_finished[chosen]

        grows = early_stopping == "never" and search.length_penalty > 0
        best_possible = running_beam_scores[0] / (max_tokens if grows else length) ** search.length_penalty
        worst_finished = np.where(is_sent_finished, beam_scores.min(), NEVER)
        may_improve = may_improve and bool((best_possible > worst_finished).any())
        exists_open_beam = not (is_sent_finished.all() and early_stopping is True)
        if not (may_improve and exists_open_beam and not hits.all()):
            break
        steps.append(running_sequences)
    found = list(zip(sequences, beam_scores.tolist(), strict=True))
    return Searched(found[: search.answers or num_beams], steps)


def _topk(values: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-values, stable=True)[:k]

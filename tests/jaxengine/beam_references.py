"""Beam searches of transformers, and ours of the same prompts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers

from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.sequence import Request
from tests.jaxengine.engines import Answer, ask

Found = list[tuple[list[int], float]]  # generated ids and the score, of each answer


@torch.no_grad()
def searched(
    model: Any, ids: Sequence[int], search: BeamSearch, max_tokens: int, ends: Sequence[int], **processors: Any
) -> Found:
    """What `generate` of transformers finds, best first; `processors` are its own fields."""
    wanted = transformers.GenerationConfig(
        num_beams=search.width,
        num_return_sequences=search.answers or search.width,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
        max_new_tokens=max_tokens,
        eos_token_id=list(ends) or None,
        pad_token_id=0,
        decoder_start_token_id=model.config.to_dict().get("decoder_start_token_id"),
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **processors,
    )
    model.generation_config = transformers.GenerationConfig()
    found = model.generate(torch.tensor([list(ids)]), generation_config=wanted)
    behind = 1 if model.config.is_encoder_decoder else len(ids)
    texts = [_unpadded(text[behind:].tolist(), ends, max_tokens) for text in found.sequences]
    return list(zip(texts, found.sequences_scores.tolist(), strict=True))


def _unpadded(ids: list[int], ends: Sequence[int], max_tokens: int) -> list[int]:
    """Without what stands behind the first id that ends a text."""
    last = next((i for i, id in enumerate(ids) if id in ends), max_tokens)
    return ids[: last + 1]


def beams(number: int, ids: Sequence[int], search: BeamSearch, ends: Sequence[int], **params: Any) -> Request:
    """Ours; deaf to the model's own EOS, so that `ends` are all that end a text."""
    return ask(number, ids, beams=search, stop_token_ids=tuple(ends), **params)


def assert_found(answer: Answer, expected: Found) -> None:
    assert [[token.id for token in beam.tokens] for beam in answer.beams] == [ids for ids, _ in expected]
    np.testing.assert_allclose([beam.score for beam in answer.beams], [score for _, score in expected], rtol=1e-4)
    for beam in answer.beams:
        assert answer.finish == answer.beams[0].finish
        assert beam.tokens

"""What the tokens of a completed step mean for their requests: they grow, some of them end, and all of it is counted.

Nothing is scheduled here and nothing is let go: `ResultProcessor` does that for requests whose events have a finish
reason.
"""

from collections.abc import Collection

import numpy as np

from jaxengine.engine.constraints import finish_of
from jaxengine.grammar.grammar import GrammarError
from jaxengine.grammar.matcher import Matcher
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.beams import Beams
from jaxengine.request.event import NOT_FINISHED, Beam, Event, FinishReason, Token
from jaxengine.request.interface import StepResult
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Sequence
from jaxengine.step.results import Results
from jaxengine.step.samples import Samples


class Answers:
    """
    Args:
        eos_token_ids: of the model.
    """

    def __init__(self, eos_token_ids: Collection[int]) -> None:
        self.eos_token_ids = frozenset(eos_token_ids)
        self.start_counting()

    def start_counting(self) -> None:
        """Set the counters to zero."""
        self.prompt_tokens = self.cached_prompt_tokens = self.generated_tokens = 0

    def count(self, plan: Plan, result: StepResult) -> None:
        """The step of `plan` has computed its tokens."""
        prompt = sum(row.count for row in (*plan.encoder_rows, *plan.rows) if row.of_prompt)
        result.prefill_tokens += prompt
        result.decode_tokens += plan.encoder_tokens + plan.tokens - prompt
        self.prompt_tokens += prompt

    def note(self, results: Results, scored: Samples) -> None:
        """Keep what `results` tell of sequences besides tokens; `scored` are the samples of the scored ones."""
        self._note_prompts(scored, results.scored)
        self._note_pooled(results.pooled)
        self._note_logits(results.logits)
        for row, surprise in results.surprises:
            row.sequence.surprise = surprise

    def _note_prompts(self, samples: Samples, tokens: list[Token]) -> None:
        """Prompt logprobs arrive chunk by chunk, and again after a preemption; each position is kept once."""
        for row, position, token in zip(samples.rows, samples.position.tolist(), tokens, strict=True):
            if position == len(row.sequence.prompt_logprobs):
                row.sequence.prompt_logprobs.append(token)

    def _note_pooled(self, pooled: list[tuple[Row, np.ndarray]]) -> None:
        """Sums of hidden states, or the last one, arrive row by row; after a preemption from the first token again."""
        for row, hidden in pooled:
            sequence = row.sequence
            before = sequence.pooled if row.start and sequence.pooling == "mean" else None
            sequence.pooled = hidden if before is None else before + hidden

    def _note_logits(self, logits: list[tuple[Row, np.ndarray]]) -> None:
        """Logits arrive chunk by chunk; after a preemption those that came before come again, and take their place."""
        for row, values in logits:
            sequence, every = row.sequence, row.sequence.request.logits == "all"
            if sequence.logits is None:
                sequence.logits = np.empty((sequence.prompt_length if every else 1, values.shape[1]), "<f4")
            first = row.start if every else 0
            sequence.logits[first : first + len(values)] = values

    def extend(self, sequence: Sequence, tokens: list[Token], now: float, result: StepResult) -> Event:
        """Append `tokens` to `sequence`, up to its last if that is among them."""
        taken: list[Token] = []
        event = Event(sequence.request.id, taken, preemptions=sequence.preemptions)
        for token in tokens:
            taken.append(token)
            sequence.tokens.append(token.id)
            event.finish = self._finish_reason(sequence, token.id)
            if event.finish is NOT_FINISHED and sequence.matcher is not None:
                self._match(sequence.matcher, token.id, event)
            if event.finish is not NOT_FINISHED:
                break
        if sequence.pooled is not None:
            event.embedding = _embedding(sequence, sequence.pooled)
        if sequence.logits is not None:
            event.logits = sequence.logits.tobytes()
        if sequence.params.samplers.mirostat_tau:
            event.surprise = sequence.surprise
        if sequence.wants_text:
            self.generated_tokens += len(taken)
            result.answered_tokens += len(taken)
        if sequence.first_token_at is None:
            self._begin(sequence, event, now, result)
        return event

    def beams_of(self, search: BeamSearch, params: SamplingParams) -> Beams:
        """A search that has not begun."""
        ends = dict.fromkeys(params.stop_token_ids, FinishReason.STOP_TOKEN)
        if not params.ignore_eos:
            ends |= dict.fromkeys(self.eos_token_ids, FinishReason.EOS)
        return Beams(search, params.max_tokens, ends, listed=params.logprobs)

    def conclude(self, sequence: Sequence, answers: list[Beam], now: float, result: StepResult) -> Event:
        """The search that `sequence` stands for has found `answers`."""
        event = Event(sequence.request.id, preemptions=sequence.preemptions, beams=answers, finish=answers[0].finish)
        count = sum(len(answer.tokens) for answer in answers)
        self.generated_tokens += count
        result.answered_tokens += count
        self._begin(sequence, event, now, result)
        return event

    def _begin(self, sequence: Sequence, event: Event, now: float, result: StepResult) -> None:
        """`event` has the first token of its request."""
        request, sequence.first_token_at = sequence.request, now
        event.first, event.cached_tokens = True, sequence.cached_tokens
        event.queue_seconds = max(0.0, (sequence.admitted_at or now) - request.arrived)
        event.prompt = sequence.prompt_logprobs
        self.cached_prompt_tokens += sequence.cached_tokens
        result.answered_tokens += len(request.prompt) - sequence.cached_tokens

    def _match(self, matcher: Matcher, token: int, event: Event) -> None:
        """Let a sequence's grammar read `token`, which ends the sequence if the grammar cannot follow."""
        try:
            matcher.consume(token)
        except GrammarError as error:
            event.finish, event.error = finish_of(error), str(error)

    def _finish_reason(self, sequence: Sequence, token: int) -> FinishReason:
        """Length is looked at first, as TGI does: an EOS sampled as the last permitted token reports length."""
        params = sequence.params
        if len(sequence.tokens) >= sequence.max_length:
            return FinishReason.LENGTH
        if token in self.eos_token_ids and not params.ignore_eos:
            return FinishReason.EOS
        return FinishReason.STOP_TOKEN if token in params.stop_token_ids else NOT_FINISHED


def _embedding(sequence: Sequence, pooled: np.ndarray) -> bytes:
    """As an event carries it: f32, little-endian."""
    count = sequence.prompt_length if sequence.pooling == "mean" else 1
    return (pooled / count).astype("<f4").tobytes()

"""What a dispatched step leaves for the host: the tokens its rows drew, and how likely those of prompts were."""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Token


class SampledTokens(NamedTuple):
    """By row of the plan; those that do not sample have an entry without meaning. All empty if none does.

    `finite` is False where the model's logits were not: the token means nothing then.
    """

    tokens: list[Token]
    finite: list[bool]


@dataclass
class Results:
    """Of one step: what its rows drew, and the logprobs of prompt tokens."""

    sampled: SampledTokens
    prompts: list[tuple[Row, list[Token]]]


@dataclass
class InFlight:
    """A dispatched step: its plan, and the arrays that will hold its results."""

    plan: Plan
    done: Array  # an output of the step that no later step takes over
    sampled: Array | None = None
    scored: Array | None = None
    prompts: list[tuple[Row, int]] = field(default_factory=list)  # rows whose prompt is scored, and their first index

    def read(self, top: int, scored: int) -> Results:
        """Wait for the step. `top` alternatives are packed with each token, `scored` with each of a prompt.

        Raises what the device raised.
        """
        if self.sampled is None:
            jax.block_until_ready(self.done)
        return Results(self._read_sampled(top), self._read_prompts(scored))

    def _read_sampled(self, top: int) -> SampledTokens:
        if self.sampled is None:
            return SampledTokens([], [])
        packed = _Packed(self.sampled, top)
        tokens = packed.tokens()
        for i, row in enumerate(self.plan.rows):
            if wanted := row.sequence.params.logprobs:
                tokens[i] = packed.with_others(i, wanted)
        return SampledTokens(tokens, (packed.third != 0).tolist())

    def _read_prompts(self, scored: int) -> list[tuple[Row, list[Token]]]:
        """For each scored row, the tokens at positions start+1 …, as likely as the model found them."""
        if self.scored is None:
            return []
        packed = _Packed(self.scored, scored)
        prompts = []
        for row, first in self.prompts:
            count = min(row.start + row.count, row.sequence.prompt_length - 1) - row.start
            wanted = row.sequence.params.logprobs
            prompts.append((row, [packed.ranked(first + i, wanted) for i in range(count)]))
        return prompts


class _Packed:
    """What `steps.pack_sampled` packs, i32 [R, 3 + 2N], on the host."""

    def __init__(self, packed: Array, top: int) -> None:
        table = np.asarray(packed)
        self.ids = table[:, 0].tolist()
        self.logprobs = table[:, 1].view(np.float32).tolist()
        self.third = table[:, 2]
        self.top_ids = table[:, 3 : 3 + top]
        self.top_logprobs = table[:, 3 + top :].view(np.float32)

    def tokens(self) -> list[Token]:
        return list(map(Token, self.ids, self.logprobs))

    def with_others(self, row: int, wanted: int) -> Token:
        """The token of `row` and the `wanted` likeliest ones."""
        others = zip(self.top_ids[row, :wanted].tolist(), self.top_logprobs[row, :wanted].tolist(), strict=True)
        return Token(self.ids[row], self.logprobs[row], tuple(others))

    def ranked(self, row: int, wanted: int) -> Token:
        """Of a result of `steps.score`, where the third column is the rank."""
        return self.with_others(row, wanted)._replace(rank=int(self.third[row]))

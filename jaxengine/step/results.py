"""What a launched step leaves for the host: the tokens of its samples, and how likely the tokens of prompts were.

Legend: N samples, T tokens of the step, A alternatives.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from jaxengine.request.event import Token
from jaxengine.request.plan import Plan, Row
from jaxengine.step.buffer import StepShape
from jaxengine.step.pooled import PooledHidden
from jaxengine.step.prompt_logits import PromptLogits
from jaxengine.step.samples import Samples


class SampledTokens(NamedTuple):
    """One of each sample. A token means nothing where `finite` is False: the model's logits were not finite."""

    tokens: list[Token]
    finite: list[bool]

    def by_row(self, rows: list[Row]) -> Iterator[tuple[Row, list[Token], bool]]:
        """Of each of a plan's `rows` that samples: the tokens that count, and whether the row is finite. Nothing counts
        behind a wrong guess, nor from the first logits on that are not finite.
        """
        first = 0
        for row in rows:
            last, end = first, first + row.samples
            while last + 1 < end and self.finite[last] and self.tokens[last].id == row.draft[last - first]:
                last += 1
            if row.samples:
                yield row, self.tokens[first : last + self.finite[last]], self.finite[last]
            first = end


@dataclass
class Results:
    """Of one step: what was sampled, and the scored tokens of prompts; each in the order of its `Samples`.

    surprises: rows of mirostat, each with its bound behind the token.

    pooled: rows, each with what it adds to its embedding, f32 [h].
    logits: rows, each with those that are wanted of its positions, f32 [positions, V].
    """

    sampled: SampledTokens
    surprises: list[tuple[Row, float]]
    scored: list[Token]
    pooled: list[tuple[Row, np.ndarray]]
    logits: list[tuple[Row, np.ndarray]]


@dataclass
class InFlight:
    """A launched step: its plan, and the arrays that will hold its results."""

    plan: Plan
    shape: StepShape
    done: Array  # an output of the step that no later step takes over; `sampled` if there is one, to keep no more alive
    samples: Samples
    sampled: Array | None  # i32 [padded N, 3 + 2A], as `pack_sampled` packs it; None if nobody wants a token
    scored_samples: Samples  # tokens of prompts
    scored: Array | None  # i32 [T, 3 + 2A], as `score` packs it; None without tokens to score
    pooled: PooledHidden | None = None  # None where no row wants an embedding
    logits: PromptLogits | None = None  # None where no row wants logits
    number: int = 0  # of the launch that samples

    def read(self, top: int, top_scored: int) -> Results:
        """Wait for the step. `top` alternatives are packed with each sampled token, `top_scored` with each scored one.

        Raises what the device raised.
        """
        if self.sampled is None:
            jax.block_until_ready(self.done)
        pooled = list(self.pooled.read()) if self.pooled else []
        logits = self.logits.read() if self.logits else []
        scored = self._read_scored(top_scored)
        if self.sampled is None:
            return Results(self._stand_ins(pooled), [], scored, pooled, logits)
        packed = _Packed(self.sampled, top)
        return Results(self._read_sampled(packed), self._read_surprises(packed), scored, pooled, logits)

    def _stand_ins(self, pooled: list[tuple[Row, np.ndarray]]) -> SampledTokens:
        """In place of the tokens that nobody wants: requests without text end with their first all the same."""
        finite = {id(row): bool(np.isfinite(hidden).all()) for row, hidden in pooled}
        rows = self.samples.rows
        return SampledTokens([Token(0, 0.0)] * len(rows), [finite.get(id(row), True) for row in rows])

    def _read_sampled(self, packed: "_Packed") -> SampledTokens:
        count = len(self.samples)
        tokens = packed.tokens(count)
        for i, row in enumerate(self.samples.rows):
            if wanted := row.sequence.listed:
                tokens[i] = packed.with_alternatives(i, wanted, possible=row.sequence.matcher is not None)
        return SampledTokens(tokens, (~np.isnan(packed.third[:count].view(np.float32))).tolist())

    def _read_surprises(self, packed: "_Packed") -> list[tuple[Row, float]]:
        surprises = packed.third.view(np.float32)
        rows = enumerate(self.samples.rows)
        return [(row, float(surprises[i])) for i, row in rows if row.sequence.params.samplers.mirostat_tau]

    def _read_scored(self, top: int) -> list[Token]:
        if self.scored is None:
            return []
        packed, samples = _Packed(self.scored, top), self.scored_samples
        wanted = [row.sequence.params.logprobs for row in samples.rows]
        return [packed.with_rank(i, count) for i, count in zip(samples.token.tolist(), wanted, strict=True)]


class _Packed:
    """What `functions.pack_sampled` packs, on the host."""

    def __init__(self, packed: Array, top: int) -> None:
        table = np.asarray(packed)
        self.ids = table[:, 0].tolist()
        self.logprobs = table[:, 1].view(np.float32).tolist()
        self.third = np.ascontiguousarray(table[:, 2])
        self.top_ids = table[:, 3 : 3 + top]
        self.top_logprobs = table[:, 3 + top :].view(np.float32)

    def tokens(self, count: int) -> list[Token]:
        return list(map(Token, self.ids[:count], self.logprobs))

    def with_alternatives(self, i: int, wanted: int, *, possible: bool = False) -> Token:
        """Token `i` and the `wanted` likeliest ones; fewer if only `possible` ones are listed."""
        ids, logprobs = self.top_ids[i, :wanted].tolist(), self.top_logprobs[i, :wanted].tolist()
        alternatives = zip(ids, logprobs, strict=True)
        listed = (each for each in alternatives if not possible or each[1] > -math.inf)
        return Token(self.ids[i], self.logprobs[i], tuple(listed))

    def with_rank(self, i: int, wanted: int) -> Token:
        """Token `i` of `functions.score`, where the third column is the rank."""
        return self.with_alternatives(i, wanted)._replace(rank=int(self.third[i]))

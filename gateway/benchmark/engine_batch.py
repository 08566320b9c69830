"""One batch through an engine: its prefill and its decode, timed apart as TGI's benchmark does.

The engine schedules by itself, so a batch is what is sent at once. Its prefill ends with the last first token, and its
decode with the last token of all. What early rows generate before the prefill is over is no part of either rate.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from gateway.engine.interface import EngineUnavailable
from jaxengine.rpc import engine_pb2 as pb

ENDS = (pb.LENGTH, pb.EOS, pb.STOP_TOKEN)


class BatchFailed(Exception):
    """A request of the batch was refused or lost. The message says why."""


class Generates(Protocol):
    """`gateway.engine.client.EngineClient`, or a fake in tests."""

    def generate(self, request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]: ...


@dataclass(frozen=True)
class Row:
    """One request: when it was answered each token, in seconds of `perf_counter`, and tokens found in the cache."""

    moments: Sequence[float]
    cached_tokens: int


@dataclass(frozen=True)
class Batch:
    """prefill: seconds until every row had its first token; decode: seconds from then to the last token of all.

    steps: tokens of a row that the decode made: of the row whose first token came last.
    decoded: tokens that all rows were given meanwhile.
    """

    rows: int
    prefill: float
    decode: float
    steps: int
    decoded: int
    cached_tokens: int

    @classmethod
    def of(cls, began: float, rows: Sequence[Row]) -> "Batch":
        last = max(rows, key=lambda row: row.moments[0])
        prefilled, ended = last.moments[0], max(row.moments[-1] for row in rows)
        decoded = sum(moment > prefilled for row in rows for moment in row.moments)
        cached = sum(row.cached_tokens for row in rows)
        return cls(len(rows), prefilled - began, ended - prefilled, len(last.moments) - 1, decoded, cached)

    @property
    def measures(self) -> dict[str, float]:
        """By the names of a report. An answer of one token has no decode."""
        found = {"prefill_ms": 1e3 * self.prefill, "prefill_tokens_per_second": self.rows / self.prefill}
        if self.steps and self.decode > 0:
            found |= {
                "decode_token_ms": 1e3 * self.decode / self.steps,
                "decode_total_ms": 1e3 * self.decode,
                "decode_tokens_per_second": self.decoded / self.decode,
            }
        return found


async def run(engine: Generates, requests: Sequence[pb.Generate]) -> Batch:
    """Send `requests` at once and time them. Raises BatchFailed."""
    began = perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_row(engine, request)) for request in requests]
    except* (BatchFailed, EngineUnavailable) as errors:
        raise BatchFailed(str(_first(errors))) from None
    return Batch.of(began, [task.result() for task in tasks])


async def _row(engine: Generates, request: pb.Generate) -> Row:
    moments: list[float] = []
    cached = 0
    async for event in engine.generate(request):
        now = perf_counter()
        moments += [now] * len(event.tokens)
        cached = max(cached, event.prompt.cached_tokens)
        if event.finish not in (pb.NOT_FINISHED, *ENDS):
            raise BatchFailed(event.error or f"a request ended with {pb.FinishReason.Name(event.finish)}")
    if not moments:
        raise BatchFailed("a request was answered without a token")
    return Row(moments, cached)


def _first(errors: BaseExceptionGroup) -> BaseException:  # type: ignore[type-arg]
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found

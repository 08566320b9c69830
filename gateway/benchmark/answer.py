"""One request and what became of it, as its client saw it. All moments are seconds of `time.perf_counter`."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.benchmark.one_line import one_line


class Outcome(StrEnum):
    """COMPLETE is the only one whose times count."""

    COMPLETE = "complete"
    REJECTED = "rejected"  # 429: the server says that it has too much to do
    REFUSED = "refused"  # any other status
    BROKEN = "broken"  # the stream told of an error, or ended before its end
    EMPTY = "empty"  # an answer without a token
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"  # no connection, or it was lost before the answer's head


@dataclass(slots=True)
class Answer:
    """Times are those of `vllm bench serve`.

    TTFT: from `start` to the first chunk. TPOT: from there to the last chunk, over the tokens but one. ITL: each of the
    gaps between chunks; a chunk may hold several tokens. E2E: from `start` to the last chunk. In a closed loop `start`
    is when the request was sent. In an open loop it is when it was due, so that a client that is late, or a server that
    keeps it waiting, does not hide what a user would have waited.

    chunks: when each chunk with a token came.
    late: seconds by which the request was sent after it was due.
    """

    start: float
    late: float = 0.0
    chunks: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    counted: bool = False  # by the server; else `output_tokens` are chunks
    streamed: bool = True
    ended: bool = False  # the stream said that it is complete
    outcome: Outcome = Outcome.COMPLETE
    detail: str = ""
    retry_after: float = 0.0  # seconds that a rejection asked for

    @property
    def complete(self) -> bool:
        return self.outcome is Outcome.COMPLETE

    @property
    def ttft(self) -> float:
        return self.chunks[0] - self.start

    @property
    def e2e(self) -> float:
        return self.chunks[-1] - self.start

    @property
    def tpot(self) -> float | None:
        """None for an answer of one token."""
        return (self.e2e - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def gaps(self) -> Sequence[float]:
        return [later - earlier for earlier, later in itertools.pairwise(self.chunks)]

    def fail(self, outcome: Outcome, detail: str) -> None:
        """The first failure counts. `detail` may hold what a server wrote."""
        if self.complete:
            self.outcome, self.detail = outcome, one_line(detail)

    def close(self) -> None:
        """Judge a stream that has ended without an error."""
        if not self.chunks or (self.counted and not self.output_tokens):
            self.fail(Outcome.EMPTY, "the answer holds no token")
        elif not self.ended:
            self.fail(Outcome.BROKEN, "the stream stopped before its end")
        if not self.counted:
            self.output_tokens = len(self.chunks)

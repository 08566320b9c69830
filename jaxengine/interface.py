"""What an engine looks like to whoever drives it: plain data in, plain data out, one `step` at a time.

`jaxengine.engine.Engine` is the real one, the tests have one without a model. Everything that serves an engine (the
gRPC service, its step thread) is written against this file only, so none of it imports JAX.
"""

from dataclasses import dataclass, field
from typing import Protocol

from jaxengine.sequence import Event, Request

COMPILING = "compiling"  # progress lines that begin so mean WARMING, others STARTING


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What an operator may decide about an engine; None leaves the choice to the engine.

    dtype: of weights and activations; "auto" is the checkpoint's own on GPU and float32 on CPU.
    memory_fraction: share of the device's memory the engine may use.
    """

    dtype: str = "auto"
    tensor_parallel: int = 1
    max_total_tokens: int | None = None
    max_batch_prefill_tokens: int | None = None
    max_batch_total_tokens: int | None = None
    max_batch_size: int | None = None
    memory_fraction: float = 0.9


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a loaded engine turned out to be; names and units as in `Description` of `engine.proto`."""

    dtype: str
    device_kind: str
    device_count: int
    vocab_size: int
    max_total_tokens: int
    max_batch_prefill_tokens: int
    max_batch_total_tokens: int
    max_batch_size: int
    page_size: int
    max_top_logprobs: int


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Gauges now and counters since start; names and units as in `Stats` of `engine.proto`."""

    waiting: int = 0
    running: int = 0
    pages_total: int = 0
    pages_used: int = 0
    pages_cached: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    step_failures: int = 0
    compiles_after_warmup: int = 0


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One finished step: what happened to each request, how many tokens were computed and how long it took."""

    events: list[Event] = field(default_factory=list)
    prefill_tokens: int = 0
    decode_tokens: int = 0
    seconds: float = 0.0


class DrivenEngine(Protocol):
    """`submit` and `cancel` may be called from any thread, `step` from one thread only."""

    @property
    def description(self) -> Facts: ...

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ValueError, naming field, value and limit, if it can never be served."""
        ...

    def cancel(self, request_id: int) -> None:
        """End a request with CANCELLED; unknown ids are ignored."""
        ...

    def step(self) -> StepResult | None:
        """Run one scheduling iteration; None if there was nothing to do."""
        ...

    def stats(self) -> Stats: ...

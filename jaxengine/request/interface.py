"""The interface of an engine to the code that drives it: plain data in, plain data out, one `step` at a time.

`jaxengine.engine.engine.Engine` implements it; the tests have an engine without a model. The gRPC service and its step
thread depend on this file only, so they do not import JAX.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from jaxengine.architecture.adaptation import AdapterReader
from jaxengine.architecture.drafter import DrafterSource
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource
from jaxengine.request.cached_pages import CachedPages
from jaxengine.request.event import Event
from jaxengine.request.sequence import Request

LOADING = "loading"  # of what is counted in bytes
COMPILING = "compiling"  # a progress line that begins with this means the state WARMING, any other one STARTING


@dataclass(frozen=True)
class Description:
    """What a loaded engine is; names and units as in `Description` of `engine.proto`."""

    model_id: str
    revision: str
    dtype: str
    device_kind: str
    device_count: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_total_tokens: int
    max_batch_prefill_tokens: int
    max_batch_total_tokens: int
    max_batch_size: int
    page_size: int
    max_top_logprobs: int
    pages_total: int
    prefix_cache: bool
    cache_dtype: str
    decoder_start_token_id: int | None = None  # of a model with an encoder; None without one
    max_adapters: int = 0
    max_adapter_rank: int = 0
    max_draft_tokens: int = 0
    pooling: str = ""
    hidden_size: int = 0
    embeds_only: bool = False
    logits: bool = False
    image_token_id: int | None = None  # of a model that sees; None of one that does not
    patch_values: int = 0
    patch_dtype: str = ""
    image_horizon: str = ""
    max_images: int = 0
    max_image_patches: int = 0
    max_image_tokens: int = 0


@dataclass(frozen=True)
class Stats:
    """Gauges, and counters since the start; names and units as in `Stats` of `engine.proto`."""

    waiting: int
    running: int
    pages_total: int
    pages_used: int
    pages_cached: int
    preemptions: int
    prompt_tokens: int
    cached_prompt_tokens: int
    generated_tokens: int
    step_failures: int
    compiles_after_warmup: int
    steps: int
    grammars_compiled: int = 0
    grammar_cache_hits: int = 0
    grammar_refusals: int = 0
    grammar_compile_seconds: float = 0.0
    grammar_mask_seconds: float = 0.0
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()
    drafts: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: tuple[int, ...] = ()
    queued_prefill_tokens: int = 0
    images_encoded: int = 0
    images_reused: int = 0


@dataclass
class StepResult:
    """What one step did. `seconds` is the wall time since the previous step completed, or since this one's launch."""

    events: list[Event] = field(default_factory=list)
    prefill_tokens: int = 0
    decode_tokens: int = 0
    answered_tokens: int = 0  # new tokens, and the computed prompt tokens of requests whose first token is among them
    seconds: float = 0.0
    pages: CachedPages | None = None  # that prompts can start from; None where no more and no fewer can be found


class OpenModel(Protocol):
    """What `convert.source.open_model` returns, as far as the engine reads it."""

    @property
    def source(self) -> ParameterSource: ...
    @property
    def model_id(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def quantization(self) -> str | None:
        """The method by which the checkpoint is quantised."""
        ...

    @property
    def directory(self) -> Path:
        """Of its tokenizer."""
        ...

    @property
    def adapters(self) -> AdapterReader | None:
        """Reads adapters that requests may name; None where the model cannot have any."""
        ...

    @property
    def module(self) -> Callable[[ModelSpec], DrafterSource] | None:
        """Opens the drafter among the model's own tensors, if there is one, for the model's specification. Raises
        `CheckpointError`-like errors.
        """
        ...

    @property
    def pooling(self) -> str:
        """How its authors pool embeddings, as `Pooling` or in other words."""
        ...

    @property
    def drafter(self) -> DrafterSource | None:
        """What was learnt to draft for this model, and was asked for or came with it."""
        ...


@dataclass(frozen=True)
class ServedAdapter:
    """An adapter that requests may name; fields as in `Adapter` of `engine.proto`."""

    name: str
    path: str
    rank: int
    digest: bytes = b""


class AdapterRefused(Exception):
    """An adapter cannot be loaded or unloaded. `reason` is "invalid", "missing", "taken" or "off"; the message is for
    the operator: what is wrong, by file and tensor.
    """

    def __init__(self, reason: Literal["invalid", "missing", "taken", "off"], message: str) -> None:
        super().__init__(message)
        self.reason = reason


class DrivenEngine(Protocol):
    """An engine. `submit`, `cancel`, `is_queued` and what concerns adapters may be called from any thread, the rest
    from the one that steps.
    """

    @property
    def description(self) -> Description: ...

    @property
    def steps_on_host(self) -> bool:
        """Whether a step takes CPU time of this process."""
        ...

    @property
    def idle(self) -> bool:
        """Whether `step` has nothing to do until the next `submit` or `cancel`."""
        ...

    def notify(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, whenever `step` has something new to do."""
        ...

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ValueError, naming field, value and limit, if it can never be served."""
        ...

    def cancel(self, request_id: int) -> None:
        """End a request with CANCELLED; unknown ids are ignored."""
        ...

    def is_queued(self, request_id: int) -> bool:
        """Whether a submitted request has not been scheduled by any step yet."""
        ...

    def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> ServedAdapter:
        """Read the adapter at `path` and serve it as `name` from now on. Takes as long as reading does.

        Raises:
            AdapterRefused: it cannot be served; nothing has changed.
        """
        ...

    def unload_adapter(self, name: str) -> None:
        """Take no more requests for adapter `name`; running ones go on. Raises AdapterRefused if there is none."""
        ...

    def adapters(self) -> tuple[ServedAdapter, ...]:
        """Those that are served now, in the order in which they were loaded."""
        ...

    def step(self) -> StepResult | None:
        """Plan and launch a step and complete the one before it. None if there was nothing to do."""
        ...

    def stats(self) -> Stats: ...

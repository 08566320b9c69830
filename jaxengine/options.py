"""What an engine is told at start, and the limits it derives where it is not told."""

from dataclasses import dataclass

from jaxengine.model.spec import ModelSpec

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """None and "auto" mean: derive it from the model and the device.

    max_total_tokens: prompt and new tokens of one request.
    max_batch_prefill_tokens: tokens one step computes, decoding rows included.
    max_batch_total_tokens: tokens the page pool holds.
    max_batch_size: rows of a step, and so requests that run at once.
    dtype: of weights, activations and cache.
    tensor_parallel: devices the model is split over.
    attention: the attention back end.
    """

    max_total_tokens: int | None = None
    max_batch_prefill_tokens: int | None = None
    max_batch_total_tokens: int | None = None
    max_batch_size: int | None = None
    dtype: str = "auto"
    tensor_parallel: int = 1
    attention: str = "auto"
    page_size: int = 16
    prefix_cache: bool = True
    max_top_logprobs: int = 20

    def __post_init__(self) -> None:
        for name in ("max_total_tokens", "max_batch_prefill_tokens", "max_batch_total_tokens", "max_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.page_size not in (16, 32, 64, 128):
            raise ValueError(f"page_size must be 16, 32, 64 or 128, got {self.page_size}")


@dataclass(frozen=True)
class Limits:
    """The numbers an engine runs with. Buckets are sorted; a step is padded to the next one."""

    max_total_tokens: int
    decode_buckets: tuple[int, ...]  # rows
    mixed_buckets: tuple[int, ...]  # tokens

    @property
    def max_batch_size(self) -> int:
        return self.decode_buckets[-1]

    @property
    def token_budget(self) -> int:
        return self.mixed_buckets[-1]

    def rows_of(self, tokens: int) -> int:
        """Rows of a mixed step of `tokens`: a decode bucket, so that both share their sampling graph."""
        return next(rows for rows in self.decode_buckets if rows >= min(tokens, self.max_batch_size))


# A 30-layer graph takes XLA 1-6 s to compile on 2 idle CPU cores, and they serve meanwhile: a CPU gets a handful.
CPU_DECODE, CPU_MIXED = (1, 4, 16, 32), (16, 64, 256)
GPU_DECODE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
GPU_MIXED = (16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)


def derive_limits(options: EngineOptions, spec: ModelSpec, platform: str) -> Limits:
    """Raises ValueError naming both numbers where options contradict each other or the model."""
    total = options.max_total_tokens or spec.max_positions
    if total > spec.max_positions:
        raise ValueError(f"max_total_tokens {total} is more than the model's {spec.max_positions} positions")
    cpu = platform == "cpu"
    rows = options.max_batch_size or (CPU_DECODE if cpu else GPU_DECODE)[-1]
    budget = options.max_batch_prefill_tokens or (CPU_MIXED if cpu else GPU_MIXED)[-1]
    budget = max(budget, rows)
    block = 16 if budget <= 16 else 32  # what a ragged step is cut into
    return Limits(
        max_total_tokens=total,
        decode_buckets=_up_to(CPU_DECODE if cpu else GPU_DECODE, rows),
        mixed_buckets=_up_to(CPU_MIXED if cpu else GPU_MIXED, -(-budget // block) * block),
    )


def _up_to(buckets: tuple[int, ...], largest: int) -> tuple[int, ...]:
    return (*(size for size in buckets if size < largest), largest)


def resolve_dtype(options: EngineOptions, checkpoint: str, platform: str) -> str:
    """What "auto" means: on a CPU f32, whose products are the fast ones there; on an accelerator the checkpoint's own,
    but bf16 for f32, which is how conversions from GGUF are kept.
    """
    if options.dtype != "auto":
        return options.dtype
    if platform == "cpu":
        return "float32"
    return "bfloat16" if checkpoint == "float32" else checkpoint

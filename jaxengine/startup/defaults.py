"""What an engine is told at start, and the limits it derives where it is not told."""

from dataclasses import dataclass

from jaxengine.cache.limits import PAGE_SIZE, Limits
from jaxengine.spec.layer_groups import LayerGroups
from jaxengine.spec.model import ModelSpec

DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZE = ("int8", "fp8")
# "fp8" is vLLM's name, the long ones are TGI's.
CACHE_DTYPES = {"auto": "", "fp8": "float8_e4m3fn", "fp8_e4m3fn": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """None and "auto" mean: derive it from the model and the device.

    max_total_tokens: prompt and new tokens of one request.
    max_batch_prefill_tokens: tokens one step computes, decoding rows included.
    max_batch_total_tokens: tokens the page pool holds, and more of long texts where layers have windows; a request of a
        state space takes max_total_tokens of them.
    max_batch_size: rows of a step, and so requests that run at once.
    dtype: of weights, activations and cache, where the next two say nothing else.
    quantize: the format of the layers' projections, see `jaxengine/weights/quantization.py`.
    kv_cache_dtype: of the cache.
    tensor_parallel: devices the model is split over.
    attention: the attention back end.
    max_top_logprobs: alternatives that a step reports beside each token; -1 for the whole vocabulary.
    """

    max_total_tokens: int | None = None
    max_batch_prefill_tokens: int | None = None
    max_batch_total_tokens: int | None = None
    max_batch_size: int | None = None
    dtype: str = "auto"
    quantize: str | None = None
    kv_cache_dtype: str = "auto"
    tensor_parallel: int = 1
    attention: str = "auto"
    page_size: int = PAGE_SIZE
    prefix_cache: bool = True
    max_top_logprobs: int = 20

    def __post_init__(self) -> None:
        for name in ("max_total_tokens", "max_batch_prefill_tokens", "max_batch_total_tokens", "max_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.quantize not in (None, *QUANTIZE):
            raise ValueError(f"quantize must be one of {', '.join(QUANTIZE)}, got {self.quantize!r}")
        if self.kv_cache_dtype not in CACHE_DTYPES:
            raise ValueError(f"kv_cache_dtype must be one of {', '.join(CACHE_DTYPES)}, got {self.kv_cache_dtype!r}")
        if self.page_size not in (16, 32, 64, 128):
            raise ValueError(f"page_size must be 16, 32, 64 or 128, got {self.page_size}")


# A 30-layer graph takes XLA 1-6 s to compile on 2 idle CPU cores, and they serve meanwhile: a CPU gets a handful, but
# few of its steps are padded to more than twice their rows: 256 tokens in place of 128 took 1.6x as long.
CPU_DECODE, CPU_MIXED = (1, 2, 4, 8, 16, 32), (16, 64, 128, 256)
GPU_DECODE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
GPU_MIXED = (16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)


STATE_TOKENS = 32768  # of a request unless told otherwise, where a state takes any number


def derive_limits(options: EngineOptions, spec: ModelSpec, platform: str) -> Limits:
    """Raises ValueError naming both numbers where options contradict each other or the model."""
    longest = min(spec.max_positions, STATE_TOKENS) if spec.state_space else spec.max_positions
    total = options.max_total_tokens or longest
    if total > spec.max_positions and not spec.attention.relative:
        raise ValueError(f"max_total_tokens {total} is more than the model's {spec.max_positions} positions")
    cpu = platform == "cpu"
    rows = options.max_batch_size or (CPU_DECODE if cpu else GPU_DECODE)[-1]
    budget = options.max_batch_prefill_tokens or (CPU_MIXED if cpu else GPU_MIXED)[-1]
    budget = max(budget, rows)
    mixed = CPU_MIXED if cpu else GPU_MIXED
    return Limits(
        max_total_tokens=total,
        decode_buckets=_up_to(CPU_DECODE if cpu else GPU_DECODE, rows),
        mixed_buckets=_up_to(mixed, _whole_blocks(budget)),
        encode_buckets=_up_to(mixed, _whole_blocks(max(budget, total))) if spec.encoder else (),
        windows=LayerGroups.of(spec).windows,
        page_size=total if spec.state_space else options.page_size,
    )


def _whole_blocks(tokens: int) -> int:
    """What a ragged step is cut into."""
    block = 16 if tokens <= 16 else 32
    return -(-tokens // block) * block


def _up_to(buckets: tuple[int, ...], largest: int) -> tuple[int, ...]:
    return (*(size for size in buckets if size < largest), largest)


def resolve_dtype(options: EngineOptions, spec: ModelSpec, checkpoint: str, platform: str) -> str:
    """What "auto" means: on a CPU f32, which loses nothing; on an accelerator the checkpoint's own,
    but bf16 for f32, which is how conversions from GGUF are kept, and for what f16 cannot hold.

    Raises:
        ValueError: f16 is asked for and the model is of T5's kin, known by relative positions, whose MLPs overflow it:
            transformers' `T5PreTrainedModel` keeps their last product in f32.
    """
    if options.dtype == "float16" and spec.attention.relative:
        raise ValueError("dtype 'float16' cannot hold what T5's MLPs compute: use 'bfloat16' or 'float32'")
    if options.dtype != "auto":
        return options.dtype
    if platform == "cpu":
        return "float32"
    return "bfloat16" if checkpoint == "float32" or spec.encoder else checkpoint


def resolve_cache_dtype(options: EngineOptions, spec: ModelSpec, dtype: str) -> str:
    """Raises ValueError where an 8-bit cache is asked for and there are no keys and values."""
    if options.kv_cache_dtype != "auto" and spec.state_space:
        raise ValueError(f"kv_cache_dtype {options.kv_cache_dtype!r}: this model keeps states, not keys and values")
    return CACHE_DTYPES[options.kv_cache_dtype] or dtype

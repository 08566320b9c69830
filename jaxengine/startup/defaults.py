"""What options left open mean for a model and a device: limits, buckets and storage types."""

import math
from dataclasses import replace

from jaxengine.architecture.drafter import DrafterSpec
from jaxengine.architecture.layer_groups import LayerGroups
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.picture import tile_rows
from jaxengine.architecture.vision import Vision
from jaxengine.cache.limits import Limits, see_shapes
from jaxengine.device import DeviceTraits
from jaxengine.options.speculation import LEARNT, OWN_FIELDS, Speculation
from jaxengine.options.table import EngineOptions

# JAX's names of the types that an 8-bit cache may have.
CACHE_DTYPES = {"fp8_e4m3fn": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}

# Buckets, in rows and in tokens. XLA takes 1-6 s to compile a 30-layer graph on 2 idle CPU cores, which also serve
# meanwhile. So a CPU gets a handful of buckets, chosen so that few steps are padded to more than twice their size: 256
# tokens in place of 128 took 1.6x as long.
CPU_DECODE, CPU_MIXED = (1, 2, 4, 8, 16, 32), (16, 64, 128, 256)
GPU_DECODE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
GPU_MIXED = (16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
# In tokens, of steps that verify drafts. On a GPU fewer take no less time, and above some 180 time is in proportion to
# tokens in bf16. On a CPU it is from 32 on; one row of SmolLM2 in f32 took 1.3, 1.6, 2.0 times as long with 4, 8, 16.
CPU_VERIFY, GPU_VERIFY = (4, 8, 16, 32, 64), (16, 32, 64, 128)
Buckets = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
CPU_BUCKETS: Buckets = (CPU_DECODE, CPU_MIXED, CPU_VERIFY)
GPU_BUCKETS: Buckets = (GPU_DECODE, GPU_MIXED, GPU_VERIFY)
# Of pictures. Idefics 3 and SmolVLM cut one into at most 17 tiles, of 676 and 1024 patches; Idefics 2 shows all of
# it and each of its quarters by as many patches as its table has at most.
IMAGE_TILES, LARGE_TILE, QUARTERS = 17, 1024, 4
# Of pictures of any size, which processors make smaller if need be. Qwen2-VL's tower takes 22 TFLOP for 16384 patches,
# 3.2 megapixels, without attention.
GPU_IMAGE_PATCHES, CPU_IMAGE_PATCHES = 16384, 4096
IMAGE_ROWS = 8192
CROSS_TILES = 64
PROMPT_TOKENS = 256  # beside a picture, of a prompt that must be computed in one step
STATE_TOKENS = 32768  # max_total_tokens of a state space, which could take any number, unless the option is set


def derive_limits(
    options: EngineOptions, spec: ModelSpec, device: DeviceTraits, drafter: DrafterSpec | None = None
) -> Limits:
    """The limits that `options` leave open. Raises ValueError where they exceed the model's positions.

    A step has no more tokens than all of its rows can have: larger ones would only take memory that the cache lacks.
    """
    longest = min(spec.max_positions, STATE_TOKENS) if spec.state_space else spec.max_positions
    total = options.max_total_tokens or longest
    if total > spec.max_positions and not spec.attention.relative:
        raise ValueError(f"max_total_tokens {total} is more than the model's {spec.max_positions} positions")
    decode, mixed, verify = CPU_BUCKETS if device.on_host else GPU_BUCKETS
    rows = options.max_batch_size or decode[-1]
    asked = options.max_batch_prefill_tokens or _prompts(mixed[-1], rows, spec.vision)
    budget = _whole_blocks(min(max(asked, rows), rows * total))
    patches = _image_patches(options, spec.vision, device) if spec.vision else 0
    speculation = resolve_speculation(options, drafter)
    drafts = (speculation.num_speculative_tokens or 0) if speculation else 0
    guesses = 2 * drafts if spec.keeps_states else drafts  # in front of a draft, those of the one before may be again
    return Limits(
        max_total_tokens=total,
        decode_buckets=_up_to(decode, rows),
        mixed_buckets=_up_to(mixed, budget),
        encode_buckets=_up_to(mixed, _whole_blocks(max(budget, total))) if spec.encoder else (),
        verify_buckets=_holding(verify, rows * (1 + guesses), budget) if drafts else (),
        draft_tokens=drafts,
        windows=LayerGroups.of(spec).windows,
        page_size=total if spec.state_space else options.page_size,
        image_patches=patches,
        image_rows=_image_rows(options, spec.vision, patches) if spec.vision else 0,
    )


def _prompts(usual: int, rows: int, vision: Vision | None) -> int:
    """Tokens of a step, of which `rows` may decode: an image whose tokens see each other must be computed in one."""
    if vision is None or vision.horizon == "token" or not vision.tile:
        return usual
    down, across = vision.tile
    text = PROMPT_TOKENS if vision.horizon == "prompt" else 0
    return max(usual, rows + tile_rows(vision, (down, across)) + text)


def _image_patches(options: EngineOptions, vision: Vision, device: DeviceTraits) -> int:
    """Patches of the largest picture, in whole tiles where these have one size."""
    usual = CPU_IMAGE_PATCHES if device.on_host else GPU_IMAGE_PATCHES
    tile = math.prod(vision.tile) if vision.tile else 1
    asked = options.max_image_patches
    if vision.tower.tiles:
        tile *= vision.tower.tiles
    if asked is not None:
        return -(-asked // tile) * tile
    if vision.pinpoints:
        return tile + max(height * width for height, width in vision.pinpoints) // vision.patch**2
    if not vision.tile and vision.tower.positions == "bucketised":
        return max(usual, (1 + QUARTERS) * math.prod(vision.tower.grid))
    most = usual // tile
    return tile * (max(most, IMAGE_TILES) if not vision.tower.tiles and 1 < tile <= LARGE_TILE else max(most, 1))


def _image_rows(options: EngineOptions, vision: Vision, patches: int) -> int:
    """Rows of the pool. Raises ValueError where the largest picture has more."""
    largest = see_shapes(vision, patches)[-1].rows
    asked = options.image_cache_tokens
    if vision.cross:
        return _cross_rows(asked, vision, largest)
    if asked is not None and asked < largest:
        raise ValueError(
            f"image_cache_tokens {asked} cannot hold the {largest} tokens that an image of max_image_patches {patches} "
            "may have"
        )
    return asked or max(2 * largest, IMAGE_ROWS)


def _cross_rows(asked: int | None, vision: Vision, largest: int) -> int:
    """The same, in tiles, whose rows layers attend to for as long as a request runs."""
    tile = vision.places
    if asked is not None and asked < largest * tile:
        raise ValueError(f"image_cache_tokens {asked} cannot hold the {largest * tile} tokens of {largest} tiles")
    return asked // tile if asked else max(2 * largest, CROSS_TILES)


def _whole_blocks(tokens: int) -> int:
    """`tokens` rounded up to the blocks that a ragged step is cut into."""
    block = 16 if tokens <= 16 else 32
    return -(-tokens // block) * block


def _holding(buckets: tuple[int, ...], tokens: int, budget: int) -> tuple[int, ...]:
    """Those of `buckets` that `budget` allows, up to one that holds `tokens`; `tokens` may be no whole blocks."""
    needed = 1 + sum(size < tokens for size in buckets)
    return tuple(size for size in buckets[:needed] if size <= budget)


def _up_to(buckets: tuple[int, ...], largest: int) -> tuple[int, ...]:
    return (*(size for size in buckets if size < largest), largest)


def resolve_dtype(options: EngineOptions, spec: ModelSpec, checkpoint: str, device: DeviceTraits) -> str:
    """The type of weights and activations. "auto" is f32 on a CPU, which loses nothing.

    On an accelerator "auto" is the checkpoint's own type, with two exceptions: f32, in which floats of GGUF files are
    read, becomes bf16; and so does any type of a model with an encoder, which f16 may not hold.

    Raises:
        ValueError: the option says f16 and the model is a T5, known by relative positions. Its MLPs overflow f16:
            transformers' `T5PreTrainedModel` keeps their last product in f32.
    """
    if options.dtype == "float16" and spec.attention.relative:
        raise ValueError("dtype 'float16' cannot hold what T5's MLPs compute: use 'bfloat16' or 'float32'")
    if options.dtype != "auto":
        return options.dtype
    if device.dtype is not None:
        return device.dtype
    return "bfloat16" if checkpoint == "float32" or spec.encoder else checkpoint


def resolve_cache_dtype(options: EngineOptions, spec: ModelSpec, dtype: str) -> str:
    """The type of the cache. Raises ValueError where it should have 8 bits and the model has no keys and values."""
    if options.kv_cache_dtype != "auto" and spec.state_space:
        raise ValueError(f"kv_cache_dtype {options.kv_cache_dtype!r}: this model keeps states, not keys and values")
    return CACHE_DTYPES.get(options.kv_cache_dtype, dtype)


def resolve_speculation(options: EngineOptions, drafter: DrafterSpec | None) -> Speculation | None:
    """How the engine speculates; None if it does not. A model's own `drafter` is used unless the options say otherwise,
    as under TGI, and guesses as many tokens as it can.

    Raises:
        ValueError: more tokens are asked for than the drafter guesses, or by a method that it does not have.
    """
    asked = options.speculation
    if drafter is None and asked and asked.method in LEARNT:
        raise ValueError(f"speculative_config: method {asked.method!r}, but the model brings no drafter: name a model")
    if drafter is None or options.speculate == 0 or (asked and asked.method in OWN_FIELDS):
        return asked
    asked = asked or Speculation()
    if asked.method not in (None, drafter.method):
        raise ValueError(f"speculative_config: method {asked.method!r}, but the model's drafter is {drafter.method!r}")
    most = asked.num_speculative_tokens or drafter.usual
    if most is None:
        raise ValueError(
            f"speculative_config: method {drafter.method!r} could guess on for ever, so it must have "
            "num_speculative_tokens"
        )
    if most > drafter.guesses:
        raise ValueError(f"speculate {most} is more than the {drafter.guesses} tokens that the model's drafter guesses")
    return replace(asked, method=drafter.method, num_speculative_tokens=most)

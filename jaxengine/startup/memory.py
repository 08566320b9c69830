"""How many pages the pool gets: the device's memory less weights, sampler state and a step's temporaries."""

import bisect
import logging
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxengine.architecture.drafter import DrafterSpec, DraftModel, Eagle
from jaxengine.architecture.layer_groups import LayerGroups
from jaxengine.architecture.model import ModelSpec
from jaxengine.cache.limits import Limits
from jaxengine.device import DeviceTraits
from jaxengine.executor.compiler import Compiler
from jaxengine.executor.deep_stacks import deep_stacks
from jaxengine.model.cache import ADDRESSES, CacheArray, byte_elements, cache_arrays, slot_arrays
from jaxengine.options.table import EngineOptions
from jaxengine.sharding import SPLIT
from jaxengine.startup.host import host_memory
from jaxengine.startup.place import DoesNotFit, Place
from jaxengine.step.sampler_state import SamplerState

logger = logging.getLogger(__name__)

CPU_POOL_BYTES = 2 << 30  # host memory is shared with every other program, and a pool of zeros takes all of it at once
CALLS_AHEAD = 2  # of the tower: one of a step that is launched, and one of the step before it
RESERVED_BYTES = 1 << 30  # left to the driver: CUDA graphs, cuBLAS, NCCL


def page_bytes(spec: ModelSpec, page_size: int, dtype: str, devices: int) -> int:
    """Bytes of one page on each device, in the caches of the layers that it spans."""
    arrays = cache_arrays(spec, LayerGroups.of(spec).arrays, 1, page_size, dtype)
    return sum(math.prod(each.shape) * each.dtype.itemsize for each in arrays) // devices


def draft_page_bytes(drafter: DrafterSpec | None, page_size: int, dtype: str, devices: int) -> int:
    """Bytes that a draft model or EAGLE's layers add to each page, on each device. Keys and values have the type of
    activations, `dtype`, and so have features, of which each device has all.
    """
    if not isinstance(drafter, DraftModel | Eagle):
        return 0
    arrays = cache_arrays(drafter.spec, drafter.spec.num_layers, 1, page_size, dtype)
    cached = sum(math.prod(each.shape) * each.dtype.itemsize for each in arrays) // devices
    features = drafter.feature_size if isinstance(drafter, Eagle) else 0
    return cached + page_size * features * arrays[0].dtype.itemsize


def temporary_bytes(compiler: Compiler) -> int:
    """Bytes that the largest steps need on each device besides their arguments, as XLA plans them. Nothing is run."""
    shapes = compiler.shapes
    rows, tokens = shapes.limits.max_batch_size, shapes.limits.token_budget
    steps = shapes.for_adapters([shapes.mixed(tokens), shapes.decode(rows)])
    largest = (
        *(partial(compiler.lower_backbone, shape) for shape in steps),
        partial(compiler.lower_sample, max(shape.samples for shape in shapes.step_shapes()), greedy=False),
        *([compiler.lower_logits] if shapes.spec.predicts_prompt else []),
        *([compiler.lower_copy_slots] if shapes.spec.recurrent_layers else []),
        *(partial(compiler.lower_encode, shape) for shape in shapes.encode_shapes()[-1:]),
        *[partial(compiler.lower_propose, rows) for rows in filter(shapes.proposes, shapes.limits.decode_buckets)][-1:],
        *([partial(compiler.lower_read, tokens)] if shapes.draft_model else []),
        *(partial(compiler.lower_see, shape) for shape in shapes.see_shapes()[-1:]),
    )
    with deep_stacks(), ThreadPoolExecutor() as pool:
        analyses = list(pool.map(lambda lower: compiler.compile(lower()).memory_analysis(), largest))
    return max(map(besides_arguments, analyses))


def besides_arguments(memory: Any) -> int:
    """Bytes that a program needs besides its arguments, by XLA's analysis of its memory."""
    return int(memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes)


def tuning_bytes(largest: int, memory: int) -> int:
    """What is kept free for XLA to time products while requests are served, with operands of its own; `largest` is the
    largest matrix. Without it the head of Llama-3.1-8B found no memory behind a full pool (H200, 8 threads compiling).
    Of a small GPU it is no more than a fiftieth: what finds no memory is compiled again, alone.
    """
    return min(largest, memory // 50)


def sampler_bytes(limits: Limits, spec: ModelSpec) -> int:
    """Bytes of the sampler's state on each device, without the masks of guesses."""
    state = jax.eval_shape(partial(SamplerState.empty, limits.max_batch_size, spec.vocab_size, limits.max_total_tokens))
    return sum(math.prod(each.shape) * each.dtype.itemsize for each in state)


def slot_bytes(limits: Limits, spec: ModelSpec, dtype: str, devices: int = 1) -> int:
    """Bytes on each device of all slots, where layers keep states; `dtype` is that of activations."""
    arrays = slot_arrays(spec, limits.state_slots, dtype)
    return sum(_share(each, devices) * each.dtype.itemsize for each in arrays)


def _share(array: CacheArray, devices: int) -> int:
    """Elements of `array` on each device, as `partition` splits it."""
    count = math.prod(array.shape)
    split = any(axis in SPLIT and size % devices == 0 for size, axis in zip(array.shape, array.axes, strict=True))
    return count // devices if split else count


def image_bytes(limits: Limits, spec: ModelSpec, dtype: str, devices: int = 1) -> int:
    """Bytes of the pool of images on each device, and of the patches of two calls of the tower."""
    if spec.vision is None:
        return 0
    row = (1 + spec.vision.deepstack) * spec.hidden_size
    if spec.vision.cross:
        of_token = 2 * len(spec.cross_layers) * spec.num_kv_heads * spec.head_dim
        row = spec.vision.places * of_token // devices
    patches = CALLS_AHEAD * limits.see_shapes(spec.vision)[-1].patches * spec.vision.patch_values
    return (limits.image_rows * row + patches) * jnp.dtype(dtype).itemsize


@dataclass(frozen=True)
class Demand:
    """Bytes that a model and its limits take on each device.

    weights, drafter, adapters: what is held of each from start to end.
    sampler: the sampler's state.
    temporaries: what the largest step needs besides its arguments.
    tuning: what compiling needs while requests are served: XLA times each product, on operands of its own.
    page: one page, in all caches that have a part of it.
    images: the pool of encoded images, and patches on their way to the tower.
    slots: what layers keep of each request in place of keys and values, and snapshots of that behind prefixes.
    """

    weights: int
    drafter: int
    adapters: int
    sampler: int
    temporaries: int
    tuning: int
    page: int
    images: int = 0
    slots: int = 0

    @property
    def fixed(self) -> int:
        """All but pages."""
        held = self.weights + self.drafter + self.adapters + self.sampler + self.images + self.slots
        return held + self.temporaries + self.tuning


def fitting_pages(limits: Limits, spec: ModelSpec, dtype: str, place: Place, demand: Demand) -> int:
    """How many pages fit into memory, without the sink. `dtype` is the cache's.

    Raises:
        DoesNotFit: not one page fits beside the weights; or, on a host, states do not.
    """
    budget = CPU_POOL_BYTES if place.device.on_host else place.memory_bytes - demand.fixed - RESERVED_BYTES
    pages = budget // demand.page - 1
    lacking = demand.fixed - host_memory() if place.device.on_host else -budget
    if 0 < lacking < demand.slots:
        taken = f"{gib(demand.slots)}, {gib(lacking)} more than there is"
        states = f"{limits.max_batch_size} requests and of {limits.snapshots} prefixes"
        raise DoesNotFit(f"the states of {states} take {taken}: lower max_batch_size or state_snapshots")
    if budget < 0:
        raise DoesNotFit(f"weights and a step's temporaries take {gib(-budget)} more than there is")
    if pages < 1:
        raise DoesNotFit(f"weights and a step's temporaries leave {gib(budget)} for the cache, less than a page")
    return _addressable(spec, limits.page_size, dtype, place.mesh.size, pages)


def clamp_total(options: EngineOptions, limits: Limits, fit: int) -> Limits:
    """`limits` with `max_total_tokens` lowered to what the pool can hold, unless the operator set it.

    Raises:
        DoesNotFit: not even a request of one page's tokens.
    """
    fit = _pages(options.max_batch_total_tokens, limits) or fit  # `pool_pages` checks whether so many fit
    if options.max_total_tokens is not None or limits.request_pages <= fit:
        return limits
    sizes = range(limits.page_size, limits.max_total_tokens, limits.page_size)
    holds = limits.page_size * bisect.bisect_right(sizes, fit, key=limits.peak_pages)
    if not holds:
        least = limits.peak_pages(limits.page_size)
        raise DoesNotFit(
            f"a request of {limits.page_size} tokens takes {least} pages, memory or max_batch_total_tokens gives {fit}"
        )
    limit = "memory" if options.max_batch_total_tokens is None else "max_batch_total_tokens"
    logger.warning("max_total_tokens is %d: the model takes %d, but %s does not", holds, limits.max_total_tokens, limit)
    return replace(limits, max_total_tokens=holds)


def pool_pages(options: EngineOptions, limits: Limits, device: DeviceTraits, fit: int) -> int:
    """How many pages the pool has with the sink; never fewer than the longest request needs.

    Raises:
        DoesNotFit: `fit` pages do not hold the longest request, or not `max_batch_total_tokens`.
    """
    need = limits.request_pages
    wanted = _pages(options.max_batch_total_tokens, limits)
    if wanted is not None and wanted < need:
        raise DoesNotFit(
            f"max_batch_total_tokens {options.max_batch_total_tokens} holds no request of "
            f"max_total_tokens {limits.max_total_tokens}: raise the one or lower the other"
        )
    pages = wanted or min(fit, limits.max_batch_size * need)
    if pages < need or (not device.on_host and pages > fit):
        name = "max_total_tokens" if pages < need else "max_batch_total_tokens"
        asked, room = limits.tokens_of(max(pages, need)), limits.tokens_of(fit)
        raise DoesNotFit(f"{name} needs a cache of {asked} tokens, {room} fit: lower it")
    return pages + 1


def check_host(options: EngineOptions, demand: Demand, pages: int) -> None:
    """Raises DoesNotFit if a pool that was asked for is larger than the host's memory: all of it is taken at once."""
    asked, there = options.max_batch_total_tokens, max(0, host_memory() - demand.fixed)
    if asked is not None and (need := pages * demand.page) > there:
        raise DoesNotFit(
            f"max_batch_total_tokens {asked} needs a cache of {gib(need)}, this machine has {gib(there)} beside the "
            "weights: lower it"
        )


def _pages(tokens: int | None, limits: Limits) -> int | None:
    return None if tokens is None else limits.pages_of(tokens)


def _addressable(spec: ModelSpec, page_size: int, dtype: str, devices: int, pages: int) -> int:
    """How many of `pages` kernels can address: the pages of one layer cannot be divided, see `layers_of_array`."""
    each = byte_elements(spec, 1, page_size, dtype, devices)
    if LayerGroups.of(spec).arrays > 1 or (pages + 1) * each <= ADDRESSES:
        return pages
    most = ADDRESSES // each - 1
    logger.warning("the cache gets %d pages of the %d that fit: kernels cannot address more in 8 bits", most, pages)
    return most


def gib(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB"

"""How many pages the pool gets: what the device has, less what weights, sampler state and a step's temporaries need."""

import logging
from dataclasses import replace

import jax
import numpy as np
from jax.sharding import Mesh

from jaxengine.compiler import Compiler
from jaxengine.model.spec import ModelSpec, parameter_count, parameter_table
from jaxengine.options import EngineOptions, Limits

log = logging.getLogger(__name__)

CPU_POOL_BYTES = 2 << 30  # a CPU's memory is shared with everything else, and zeroed pages are committed at once
RESERVED_BYTES = 1 << 30  # left to the driver: CUDA graphs, cuBLAS, NCCL


class DoesNotFit(ValueError):
    """The model and its limits need more memory than there is; the message has the numbers."""


def page_bytes(spec: ModelSpec, page_size: int, dtype: str, devices: int) -> int:
    """Bytes of one page on each device, keys and values of all layers."""
    per_token = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * np.dtype(_numpy(dtype)).itemsize
    return page_size * per_token // devices


def temporary_bytes(compiler: Compiler) -> int:
    """What the largest steps need on each device besides their arguments, as XLA planned it: nothing is run."""
    shapes = compiler.shapes
    rows, tokens = shapes.limits.max_batch_size, shapes.limits.token_budget
    largest = (
        compiler.lower_backbone(shapes.mixed(tokens)),
        compiler.lower_backbone(shapes.decode(rows)),
        compiler.lower_draw(rows, greedy=False),
    )
    analyses = [compiler.compile(lowered).memory_analysis() for lowered in largest]
    return max(a.temp_size_in_bytes + a.output_size_in_bytes - a.alias_size_in_bytes for a in analyses)


def fitting_pages(
    options: EngineOptions, limits: Limits, spec: ModelSpec, dtype: str, mesh: Mesh, temporaries: int
) -> int:
    """Pages that memory has room for, the sink left out.

    Args:
        temporaries: bytes the largest step needs besides its arguments, per device.

    Raises:
        DoesNotFit: not one page beside the weights.
    """
    device = mesh.devices.flat[0]
    if device.platform == "cpu":
        budget = CPU_POOL_BYTES
    else:
        fixed = _fixed_bytes(spec, limits, dtype, mesh.size) + temporaries + RESERVED_BYTES
        budget = _device_bytes(device) - fixed
    pages = budget // page_bytes(spec, options.page_size, dtype, mesh.size) - 1
    if pages < 1:
        raise DoesNotFit(f"weights and a step's temporaries leave {budget} bytes for the cache, less than a page")
    return pages


def clamp_total(options: EngineOptions, limits: Limits, fit: int) -> Limits:
    """`limits` with a longest request that the pool can hold, where the operator did not set its length."""
    holds = min(fit, _pages(options.max_batch_total_tokens, options) or fit) * options.page_size
    if options.max_total_tokens is not None or limits.max_total_tokens <= holds:
        return limits
    log.warning("max_total_tokens is %d: the model takes %d, but memory does not", holds, limits.max_total_tokens)
    return replace(limits, max_total_tokens=holds)


def pool_pages(options: EngineOptions, limits: Limits, platform: str, fit: int) -> int:
    """Pages of the pool, the sink included; never fewer than the longest request needs.

    Raises:
        DoesNotFit: the longest request, or what `max_batch_total_tokens` asks for, does not fit into `fit` pages.
    """
    need = _pages(limits.max_total_tokens, options)
    assert need is not None
    wanted = _pages(options.max_batch_total_tokens, options)
    if wanted is not None and wanted < need:
        raise DoesNotFit(
            f"max_batch_total_tokens {options.max_batch_total_tokens} holds no request of "
            f"max_total_tokens {limits.max_total_tokens}: raise the one or lower the other"
        )
    pages = wanted or min(fit, limits.max_batch_size * need)
    if pages < need or (platform != "cpu" and pages > fit):
        name = "max_total_tokens" if pages < need else "max_batch_total_tokens"
        asked = max(pages, need) * options.page_size
        raise DoesNotFit(f"{name} needs a cache of {asked} tokens, {fit * options.page_size} fit: lower it")
    return pages + 1


def _pages(tokens: int | None, options: EngineOptions) -> int | None:
    return None if tokens is None else -(-tokens // options.page_size)


def _fixed_bytes(spec: ModelSpec, limits: Limits, dtype: str, devices: int) -> int:
    weights = parameter_count(parameter_table(spec)) * np.dtype(_numpy(dtype)).itemsize // devices
    seats = 3 * 4 * (limits.max_batch_size + 1) * spec.vocab_size
    return weights + seats


def _device_bytes(device: jax.Device) -> int:
    """What JAX may use of the device: the share that XLA_CLIENT_MEM_FRACTION gives it, three quarters by default."""
    stats = device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        raise DoesNotFit(f"{device.device_kind} does not tell its memory size: set max_batch_total_tokens")
    return int(stats["bytes_limit"])


def _numpy(dtype: str) -> np.dtype:
    return np.dtype(jax.numpy.dtype(dtype))

"""How many pages the pool gets: what the device has, less what weights, sampler state and a step's temporaries need."""

import jax
import numpy as np
from jax.sharding import Mesh

from jaxengine.compiler import Compiler
from jaxengine.model.spec import ModelSpec, parameter_count, parameter_table
from jaxengine.options import EngineOptions, Limits

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


def pool_pages(
    options: EngineOptions, limits: Limits, spec: ModelSpec, dtype: str, mesh: Mesh, temporaries: int
) -> int:
    """Pages of the pool, the sink included; never fewer than the longest request needs.

    Args:
        temporaries: bytes the largest step needs besides its arguments, per device.

    Raises:
        DoesNotFit: the longest request does not fit, or fewer tokens do than `max_batch_total_tokens` asks for.
    """
    device = mesh.devices.flat[0]
    need = -(-limits.max_total_tokens // options.page_size)
    useful = limits.max_batch_size * need
    if device.platform == "cpu":
        budget = CPU_POOL_BYTES
    else:
        fixed = _fixed_bytes(spec, limits, dtype, mesh.size) + temporaries + RESERVED_BYTES
        budget = _device_bytes(device) - fixed
    fit = budget // page_bytes(spec, options.page_size, dtype, mesh.size) - 1
    wanted = options.max_batch_total_tokens
    pages = -(-wanted // options.page_size) if wanted is not None else min(fit, useful)
    if pages < need or (device.platform != "cpu" and pages > fit):
        have, asked = max(fit, 0) * options.page_size, max(pages, need) * options.page_size
        raise DoesNotFit(
            f"the cache needs room for {asked} tokens (max_total_tokens {limits.max_total_tokens}), "
            f"{min(have, pages * options.page_size)} fit: lower max_total_tokens or max_batch_size"
        )
    return pages + 1


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

"""What this device can do at most: bytes copied and bf16 operations a second, on random data, by XLA itself.

Every other section is judged against these two numbers and not against a datasheet.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tests.gpu.record import Record
from tests.gpu.scale import Scale

IN_FLIGHT = 10  # calls launched before the clock is read: their launches hide behind each other


def run(record: Record, scale: Scale) -> None:
    device = jax.devices()[0]
    stats = device.memory_stats() or {}
    record.add("device", kind=device.device_kind, platform=device.platform, bytes_limit=stats.get("bytes_limit"))
    record.add("ceilings", what="copy", unit="byte", rate=copy_bandwidth(scale.copy_bytes, scale.repeats))
    record.add("ceilings", what="bf16 matmul", unit="operation", rate=matmul_rate(scale.matmul, scale.repeats))


def copy_bandwidth(size: int, repeats: int) -> float:
    """Bytes read plus bytes written a second, copying `size` bytes within the device's memory."""
    words = jax.random.bits(jax.random.key(0), (size // 4,), jnp.uint32)
    return 2 * size / seconds_per_call(jax.jit(jnp.copy), (words,), repeats)


def matmul_rate(side: int, repeats: int) -> float:
    """Operations a second of a square bf16 product. Random operands: zeros run up to 13 % faster (H200)."""
    a, b = (jax.random.normal(jax.random.key(i), (side, side), jnp.bfloat16) for i in (1, 2))
    return 2 * side**3 / seconds_per_call(jax.jit(jnp.matmul), (a, b), repeats)


def seconds_per_call(function: Callable[..., Any], arguments: tuple[Any, ...], repeats: int) -> float:
    """Median over `repeats` of `IN_FLIGHT` calls launched together, warmed up."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        last = None
        for _ in range(IN_FLIGHT):
            last = function(*arguments)
        jax.block_until_ready(last)
        times.append((time.perf_counter() - start) / IN_FLIGHT)
    return statistics.median(times)

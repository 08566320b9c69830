"""The engine at the size that matters: start, prefill, decode, loads, and a trace, all in one process, because loading
and compiling is most of the cost of each.
"""

import os
import time
from pathlib import Path

import jax

from jaxengine.engine.engine import Engine
from tests.gpu import decode, loads, prefill, trace
from tests.gpu.engines import Client, compiled_with, measured_engine
from tests.gpu.record import Record
from tests.gpu.scale import Scale


def run(record: Record, scale: Scale) -> None:
    engine = start(record, scale, "cold")
    client = Client(engine)
    with record.part("prefill"):
        prefill.measure(client, record, scale)
    near, *far = scale.contexts
    used = bytes_in_use()
    with record.part("decode, short context"):
        decode.measure(client, record, scale, [near])
    with record.part("loads"):
        loads.measure(client, record, scale)
    with record.part("trace"):
        trace.measure(client, record, scale)
    with record.part("decode, long context"):
        decode.measure(client, record, scale, far)
    stats = engine.stats()
    grown = bytes_in_use() - used
    record.add("counters", compiles_after_warmup=stats.compiles_after_warmup, steps=stats.steps, bytes_grown=grown)


def start(record: Record, scale: Scale, kind: str) -> Engine:
    """An engine with every bucket compiled, and how long it took since this process was made."""
    # Under a profiler XLA launches kernels one by one unless compiled otherwise: not the step that is served.
    with compiled_with({"xla_enable_command_buffers_during_profiling": True}):
        engine = measured_engine(scale)
        client = Client(engine)
        client.submit(1, min(scale.prefills), new=1)
        client.drain()
        ready = process_age()
        engine.finish_compiling()
    record.add("starts", kind=kind, ready_seconds=ready, compiled_seconds=process_age())
    return engine


def bytes_in_use() -> int:
    """Of the device's memory; 0 where it does not tell. An idle engine that has served holds what it held before."""
    return int((jax.devices()[0].memory_stats() or {}).get("bytes_in_use", 0))


def process_age() -> float:
    """Seconds since this process was made, imports included; from Linux's own books."""
    started = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")

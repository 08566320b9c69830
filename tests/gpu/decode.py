"""Steady decoding: every batch size at every context length, from a crowd that grows and is never padded."""

import statistics
from collections.abc import Sequence

import numpy as np

from jaxengine.roofline import step_cost
from tests.gpu.engines import Client
from tests.gpu.record import Record
from tests.gpu.scale import Scale
from tests.gpu.steptime import watched

WARM_UP_STEPS = 8


def measure(
    client: Client, record: Record, scale: Scale, contexts: Sequence[int], weights: str = "", weight_bytes: int = 0
) -> None:
    """A row of "decode" for each batch size at each of `contexts`, or the reason why there is none.

    Args:
        weights: names the format of the weights, the scale's own by default.
        weight_bytes: of one element of it.
    """
    capacity = client.engine.description.max_batch_total_tokens
    for context in contexts:
        crowd: list[int] = []
        for count in scale.decode_rows:
            need = count * (context + scale.growth)
            if need > capacity:
                record.add("skipped", what=f"decode {count} x {context}", why=f"needs {need} tokens, {capacity} fit")
                continue
            crowd += client.submit(count - len(crowd), context, scale.growth)
            fill(client, crowd)
            times = timed(client, scale.decode_steps)
            cached = statistics.fmean(client.engine.live[number].computed for number in crowd)
            least = cost(scale, count, cached, weight_bytes or scale.itemsize)
            label = weights or scale.dtype
            record.add("decode", weights=label, rows=count, context=context, cached=cached, **times, **least)
        client.cancel(crowd)


def fill(client: Client, crowd: Sequence[int]) -> None:
    """Step until each of `crowd` decodes, and a little longer."""
    live = client.engine.live
    client.step()
    while any(live[number].started is None for number in crowd):
        client.step()
    for _ in range(WARM_UP_STEPS):
        client.step()


def timed(client: Client, steps: int) -> dict[str, float]:
    """What a step of those who are there takes."""
    with watched(client.engine) as times:
        for _ in range(steps):
            client.step()
    return {
        "seconds": statistics.fmean(times.wall),
        "p99_seconds": float(np.quantile(times.wall, 0.99)),
        "host_seconds": statistics.median(times.host),
        "idle_at_most": times.idle_at_most,
    }


def cost(scale: Scale, rows: int, cached: float, weight_bytes: int) -> dict[str, float]:
    """What a step of `rows` has to do at least; `cached` is the mean number of tokens each attends to."""
    least = step_cost(scale.spec, rows, 1, round(cached), itemsize=scale.itemsize, weight_itemsize=weight_bytes)
    return {"tokens": rows, "bytes": least.bytes, "operations": least.operations}

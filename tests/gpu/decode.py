"""Steady decoding: every batch size at every context length, from a crowd that grows and is never padded."""

import statistics
from collections.abc import Sequence

import jax
import numpy as np

from jaxengine.capacity.roofline import step_cost
from jaxengine.weights.quantization import chosen_formats
from tests.gpu.engines import Client
from tests.gpu.record import Record
from tests.gpu.scale import Scale
from tests.gpu.steptime import watched

WARM_UP_STEPS = 8
DRAINED_STEPS = 8


def measure(
    client: Client,
    record: Record,
    scale: Scale,
    contexts: Sequence[int],
    quantize: str | None = None,
    cache: str | None = None,
) -> None:
    """A row of "decode" for each batch size at each of `contexts`, or the reason why there is none.

    Args:
        quantize: the format of the client's weights.
        cache: the 8-bit format of its cache.
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
            times = timed(client, scale.decode_steps) | {"drained_seconds": drained_launch(client)}
            live = [client.engine.requests.live[number] for number in crowd]
            cached = statistics.fmean(sequence.computed + len(sequence.encoder_input) for sequence in live)
            least = cost(scale, count, cached, quantize, 1 if cache else scale.itemsize)
            engine = {"model": scale.model, "weights": quantize or scale.dtype, "cache": cache or scale.dtype}
            record.add("decode", **engine, rows=count, context=context, cached=cached, **times, **least)
        client.cancel(crowd)


def fill(client: Client, crowd: Sequence[int]) -> None:
    """Step until each of `crowd` decodes, and a little longer."""
    live = client.engine.requests.live
    client.step()
    while any(live[number].first_token_at is None for number in crowd):
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
        "launch_seconds": statistics.median(times.launched),
        "idle_at_most": times.idle_at_most,
    }


def drained_launch(client: Client) -> float:
    """Seconds that the launches of a step take when the device has nothing to do. Those of a busy one take more if the
    host waits in them.
    """
    state = client.engine.runner.state
    with watched(client.engine) as times:
        for _ in range(DRAINED_STEPS):
            jax.block_until_ready((state.layers, state.slot_state))
            client.step()
    return statistics.median(times.launched)


def cost(scale: Scale, rows: int, cached: float, quantize: str | None, itemsize: int) -> dict[str, float]:
    """What a step of `rows` has to do at least.

    Args:
        cached: the mean number of tokens each attends to.
        itemsize: bytes of an element of the cache.
    """
    least = step_cost(
        scale.spec, rows, 1, round(cached), itemsize, scale.itemsize, chosen_formats(scale.spec, quantize)
    )
    return {"tokens": rows, "bytes": least.bytes, "operations": least.operations}

"""One prompt alone, from submission to its first token: the time to first token of an idle engine."""

import statistics
import time

from jaxengine.capacity.roofline import step_cost
from tests.gpu.engines import Client
from tests.gpu.record import Record
from tests.gpu.scale import Scale


def measure(client: Client, record: Record, scale: Scale, quantize: str | None = None) -> None:
    """A row of "prefill" for each prompt length, the median of several. `quantize`: the format of the weights."""
    for length in scale.prefills:
        first_token(client, length)
        seconds = statistics.median(first_token(client, length) for _ in range(scale.repeats))
        least = step_cost(scale.spec, 1, length, 0, itemsize=scale.itemsize, weight_itemsize=scale.itemsize)
        costs = {"seconds": seconds, "bytes": least.bytes, "operations": least.operations}
        record.add("prefill", model=scale.model, weights=quantize or scale.dtype, tokens=length, **costs)


def first_token(client: Client, length: int) -> float:
    start = time.perf_counter()
    client.submit(1, length, new=1)
    client.drain()
    return time.perf_counter() - start

"""The loads that peers are given too: requests that arrive together, run to their end."""

import time

from tests.gpu.engines import Client
from tests.gpu.record import Record
from tests.gpu.scale import Load, Scale

OURS = "jaxengine"


def measure(client: Client, record: Record, scale: Scale) -> None:
    for load in scale.loads:
        record.add("loads", load=load.name, engine=OURS, seconds=seconds(client, load), tokens=load.requests * load.new)


def seconds(client: Client, load: Load) -> float:
    """From the first submission to the last token."""
    start = time.perf_counter()
    client.submit(load.requests, load.prompt, load.new)
    client.drain()
    return time.perf_counter() - start

"""A crowd whose keys and values have 8 bits."""

from dataclasses import replace

from tests.gpu import decode
from tests.gpu.engines import measured_client
from tests.gpu.record import Record
from tests.gpu.scale import Scale

CACHE = "fp8_e4m3fn"


def run(record: Record, scale: Scale) -> None:
    crowd = replace(scale.brief(32), contexts=scale.contexts[-1:])
    with record.part(f"{CACHE} cache"), measured_client(crowd, kv_cache_dtype=CACHE) as client:
        decode.measure(client, record, crowd, crowd.contexts, cache=CACHE)

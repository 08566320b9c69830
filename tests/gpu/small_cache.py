"""A crowd whose keys and values have 8 bits."""

import dataclasses

from tests.gpu import decode
from tests.gpu.engines import measured_client
from tests.gpu.record import Record
from tests.gpu.scale import Scale

CACHE = "fp8_e4m3fn"


def run(record: Record, scale: Scale) -> None:
    full, far = scale.name == "full", max(scale.contexts)
    rows = scale.decode_rows[2:3] if full else scale.decode_rows[-2:-1]
    prefills = (2048,) if full else scale.prefills
    crowd = dataclasses.replace(scale, decode_rows=rows, contexts=(far,), prefills=prefills)
    with record.part(f"{CACHE} cache"), measured_client(crowd, kv_cache_dtype=CACHE) as client:
        decode.measure(client, record, crowd, [far], cache=CACHE)

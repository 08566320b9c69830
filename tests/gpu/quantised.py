"""Weights in 8 and 4 bits beside 16: a prompt, a lone request and a crowd; and a crowd over an 8-bit cache."""

import dataclasses

from jaxengine.weights.quantization import FORMATS, FOUR_BITS
from tests.gpu import decode, prefill, trace
from tests.gpu.engines import measured_client
from tests.gpu.record import Record
from tests.gpu.scale import Scale

CACHE = "fp8_e4m3fn"
TRACED = ("int4", "int8")


def run(record: Record, scale: Scale) -> None:
    full = scale.name == "full"
    near, far = min(scale.contexts), max(scale.contexts)
    some = dataclasses.replace(scale, decode_rows=(1, 128), contexts=(near,), prefills=(2048,)) if full else scale
    formats = dict.fromkeys((None, "int4", *FORMATS, *FOUR_BITS)) if full else dict.fromkeys(list(FORMATS)[:1])
    for name in formats:
        with record.part(f"{name or scale.dtype} weights"), measured_client(some, quantize=name) as client:
            prefill.measure(client, record, some, name)
            decode.measure(client, record, some, [near], quantize=name)
            if name in TRACED:
                trace.measure(client, record, some, name)
    rows = scale.decode_rows[2:3] if full else scale.decode_rows[-2:-1]
    crowd = dataclasses.replace(scale, decode_rows=rows, contexts=(far,), prefills=some.prefills)
    with record.part(f"{CACHE} cache"), measured_client(crowd, kv_cache_dtype=CACHE) as client:
        decode.measure(client, record, crowd, [far], cache=CACHE)

"""Decoding over fewer bits: a lone request over weights in 8 and 4 bits, a crowd over 4 bits and an 8-bit cache."""

import dataclasses

from jaxengine.weights.quantization import FORMATS, FOUR_BITS
from tests.gpu import decode
from tests.gpu.engines import Client, measured_engine
from tests.gpu.record import Record
from tests.gpu.scale import Scale

CACHE = "fp8_e4m3fn"


def run(record: Record, scale: Scale) -> None:
    alone = dataclasses.replace(scale, decode_rows=(1,))
    for name in dict.fromkeys(("int4", *FORMATS, *FOUR_BITS)) if scale.name == "full" else list(FORMATS)[:1]:
        with record.part(f"{name} weights"):
            some = dataclasses.replace(scale, decode_rows=(1, 128)) if name == "int4" else alone
            client = Client(measured_engine(some, quantize=name))
            decode.measure(client, record, some, [min(scale.contexts)], quantize=name)
    crowd = dataclasses.replace(scale, decode_rows=scale.decode_rows[-2:-1])
    with record.part(f"{CACHE} cache"):
        client = Client(measured_engine(crowd, kv_cache_dtype=CACHE))
        decode.measure(client, record, crowd, [max(scale.contexts)], cache=CACHE)

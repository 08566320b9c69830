"""A lone request over 8-bit weights, beside the same step over the model's own."""

import dataclasses

from jaxengine.options import EngineOptions
from tests.gpu import decode
from tests.gpu.engines import Client, measured_engine
from tests.gpu.record import Record
from tests.gpu.scale import Scale

FORMATS = ("int8", "fp8")


def run(record: Record, scale: Scale) -> None:
    if "quantize" not in {field.name for field in dataclasses.fields(EngineOptions)}:
        record.add("skipped", what="decode over int8 and fp8 weights", why="not built: EngineOptions has no `quantize`")
        return
    alone = dataclasses.replace(scale, decode_rows=(1,))
    for name in FORMATS:
        with record.part(f"{name} weights"):
            client = Client(measured_engine(alone, quantize=name))
            decode.measure(client, record, alone, [min(scale.contexts)], weights=name, weight_bytes=1)

"""Weights in 8 and 4 bits beside 16: a prompt, a lone request and a crowd."""

import dataclasses
from collections.abc import Iterable

from jaxengine.weights.quantization import FORMATS
from tests.gpu import decode, prefill, trace
from tests.gpu.engines import measured_client
from tests.gpu.record import Record
from tests.gpu.scale import Scale

TRACED = ("int4", "int8")


def run(record: Record, scale: Scale) -> None:
    measure(record, scale, (None, "int4", *FORMATS) if scale.name == "full" else list(FORMATS)[:1])


def measure(record: Record, scale: Scale, formats: Iterable[str | None]) -> None:
    """Rows of "prefill" and "decode" for each of `formats`; None is 16 bits."""
    near = min(scale.contexts)
    if scale.name == "full":
        scale = dataclasses.replace(scale, decode_rows=(1, 128), contexts=(near,), prefills=(2048,))
    for name in formats:
        with record.part(f"{name or scale.dtype} weights"), measured_client(scale, quantize=name) as client:
            prefill.measure(client, record, scale, name)
            decode.measure(client, record, scale, [near], quantize=name)
            if name in TRACED:
                trace.measure(client, record, scale, name)

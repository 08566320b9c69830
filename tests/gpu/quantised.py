"""Weights in 8 and 4 bits beside 16: a prompt, a lone request and a crowd."""

from collections.abc import Iterable

from jaxengine.weights.quantization import FORMATS
from tests.gpu import decode, prefill, trace
from tests.gpu.engines import measured_client
from tests.gpu.record import Record
from tests.gpu.scale import Scale

TRACED = (None, "int4", "int8")


def run(record: Record, scale: Scale) -> None:
    measure(record, scale, (None, "int4", *FORMATS) if scale.name == "full" else list(FORMATS)[:1])


def measure(record: Record, scale: Scale, formats: Iterable[str | None]) -> None:
    """Rows of "prefill" and "decode" for each of `formats`; None is 16 bits."""
    short = scale.brief(1, 128)
    for name in formats:
        with record.part(f"{name or scale.dtype} weights"), measured_client(short, quantize=name) as client:
            prefill.measure(client, record, short, name)
            decode.measure(client, record, short, short.contexts, quantize=name)
            if name in TRACED:
                trace.measure(client, record, short, name)

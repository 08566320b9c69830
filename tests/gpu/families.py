"""How fast models decode that are no Llamas: windows beside full attention and soft caps, state spaces, an encoder."""

from dataclasses import replace

from tests.gpu import decode, prefill
from tests.gpu.engines import measured_client
from tests.gpu.models import MODELS
from tests.gpu.record import Record
from tests.gpu.scale import Scale
from tests.shapes import FALCON_MAMBA_7B, FLAN_T5_XXL, GEMMA2_9B


def run(record: Record, scale: Scale) -> None:
    for each in full(scale) if scale.name == "full" else small(scale):
        with record.part(each.model):
            measure(record, each)


def full(scale: Scale) -> list[Scale]:
    """Of `scale`; a T5's prompt is its encoder's, and no longer than its training's."""
    rows, alone = (1, 128), (2048,)
    gemma = replace(scale, model="Gemma-2-9B", spec=GEMMA2_9B, decode_rows=(1, 32), contexts=(6144,), prefills=alone)
    mamba = replace(scale, model="Falcon-Mamba-7B", spec=FALCON_MAMBA_7B, decode_rows=rows, contexts=(1024,))
    t5 = replace(scale, model="FLAN-T5-XXL", spec=FLAN_T5_XXL, decode_rows=rows, contexts=(512,), prefills=(512,))
    return [gemma, replace(mamba, prefills=alone), t5]


def small(scale: Scale) -> list[Scale]:
    return [replace(scale, model="states", spec=MODELS["states"])]


def measure(record: Record, scale: Scale) -> None:
    """Rows of "decode", and of "prefill" where the decoder reads the prompt."""
    with measured_client(scale) as client:
        decode.measure(client, record, scale, scale.contexts)
        if scale.spec.encoder is None:
            prefill.measure(client, record, scale)

"""Models that run other kernels than a Llama's, small ones against a CPU: windows and soft caps, experts, state spaces,
an encoder.
"""

from tests.gpu.correctness import compare, others
from tests.gpu.record import Record
from tests.gpu.scale import Scale

SMOKE = "encoder", "float32"


def run(record: Record, scale: Scale) -> None:
    wanted = [one for one in others() if scale.name == "full" or (one.ours.model, one.ours.dtype) == SMOKE]
    compare(record, wanted)

"""Models that run other kernels than a Llama's, small ones against a CPU: windows and soft caps, experts, state spaces,
an encoder.
"""

from tests.gpu.correctness import compare, others
from tests.gpu.record import Record
from tests.gpu.scale import Scale


def run(record: Record, scale: Scale) -> None:
    compare(record, others() if scale.name == "full" else others()[3:4])

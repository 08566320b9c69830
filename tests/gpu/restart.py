"""The same start again, in a new process, with the compile cache that the first one filled."""

from tests.gpu.llama import start
from tests.gpu.record import Record
from tests.gpu.scale import Scale


def run(record: Record, scale: Scale) -> None:
    start(record, scale, "warm").close()

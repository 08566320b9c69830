"""What the gateway and its helper process say to each other, a datagram each, as JSON.

With a job come two files in memory: that of the picture, and one for the patches, of exactly their size, which cannot
be made smaller. No byte of a picture stands in a message.
"""

import json
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np

from gateway.images.scanners import PictureFormat

MAX_MESSAGE = 4096  # bytes
DTYPES = ("float32", "bfloat16")


class Ending(Enum):
    """How the work on a picture ended, by the byte that its child writes; what has none is told by the child's end."""

    DONE = "K"
    UNDECODED = "D"
    OTHER_SIZE = "S"
    UNPROCESSED = "P"
    MEMORY = "M"
    TIME = "T"
    CRASH = "C"


@dataclass(frozen=True)
class Job:
    """number: names it in answers. width, height: what the picture must turn out to have, upright.

    detail: of `ImageProcessor.plan`. rows, columns: the shape of the patches.
    """

    number: int
    format: PictureFormat
    width: int
    height: int
    detail: str
    rows: int
    columns: int

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def job_of(message: bytes) -> Job | int:
    """The inverse of `Job.encoded`, or of `cancellation`: the number of a job that nobody waits for any more."""
    fields: dict[str, Any] = json.loads(message)
    return int(fields["cancel"]) if "cancel" in fields else Job(**fields)


def cancellation(number: int) -> bytes:
    return json.dumps({"cancel": number}).encode()


def answer(number: int, ending: Ending) -> bytes:
    return json.dumps([number, ending.value]).encode()


def answer_of(message: bytes) -> tuple[int, Ending]:
    number, ending = json.loads(message)
    return int(number), Ending(ending)


def dtype_of(name: str) -> "np.dtype[Any]":
    if name == "bfloat16":
        import ml_dtypes  # registers nothing unless it is imported

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)

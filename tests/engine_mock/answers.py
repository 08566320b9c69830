"""What the mock answers: every id is a known function of the ids before it.

A prompt that begins with one of the ids below misbehaves on purpose.
"""

import os
import signal
import time
import zlib
from collections.abc import Sequence

import numpy as np

VOCABULARY = 320
EMBEDDING = 4  # numbers
EOS = 0
CRASH, HANG, FAIL, RAISE = 301, 302, 303, 304  # first prompt id: kill -9 self, stop stepping, ERROR, escape a step
CRASH_LATER = 305  # kill -9 self in the step behind the one that reads the prompt


def next_id(ids: Sequence[int], adapter: str = "") -> int:
    """The id that follows `ids`: never EOS, and never one that misbehaves. An adapter's differs by the path it has."""
    return 1 + (ids[-1] * 7 + len(ids) * 13 + zlib.crc32(adapter.encode())) % 255


def continuation(prompt: Sequence[int], count: int, adapter: str = "") -> list[int]:
    """What the mock answers to `prompt`, be it with the adapter that was loaded from the path `adapter`."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_id(ids, adapter))
    return ids[len(prompt) :]


def embedding_of(prompt: Sequence[int]) -> bytes:
    """What a prompt is embedded as: its length, its last id, the sum of all, and their mean."""
    numbers = (len(prompt), prompt[-1], sum(prompt), sum(prompt) / len(prompt))
    return np.array(numbers, "<f4").tobytes()


def logits_of(prompt: Sequence[int]) -> np.ndarray:
    """What a prompt's logits are: f32 [prompt, VOCABULARY], each row's highest at its id."""
    distance = np.abs(np.arange(VOCABULARY) - np.array(prompt)[:, None])
    return (8.5 - distance / 4).astype("<f4")


def misbehave(number: int, *, begun: bool) -> None:
    if number == CRASH or (number == CRASH_LATER and begun):
        os.kill(os.getpid(), signal.SIGKILL)
    elif number == HANG:
        time.sleep(3600)
    elif number == RAISE:
        raise RuntimeError("told to raise")

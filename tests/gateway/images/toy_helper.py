"""A helper process whose processor answers a picture's own pixels, and misbehaves at pictures of some widths.

Run as the helper is: `python -m tests.gateway.images.toy_helper DESCRIPTOR DTYPE DIRECTORY`.
"""

import ctypes
import os
import signal
import socket
import sys
import time

import numpy as np
from PIL import Image

from gateway.images.helper_limits import Limits
from gateway.images.helper_process import serve

DIES, HANGS, SPINS, EATS, FAILS, LIES = 1001, 1002, 1003, 1004, 1005, 1006  # widths
SLOW = 1007  # takes half a second
ESCAPES = 1008  # tries to reach what it must not
WALL_SECONDS = 3.0


class ToyProcessor:
    def plan(self, width: int, height: int, detail: str) -> tuple[int, int]:
        return width, height

    def patches(self, picture: Image.Image, plan: tuple[int, int]) -> np.ndarray:
        """f32 [height, 3 * width]"""
        assert picture.mode == "RGB" and picture.size == plan
        _misbehave(picture.width)
        rows = picture.height - 1 if picture.width == LIES else picture.height
        return np.asarray(picture, np.float32)[:rows].reshape(rows, -1)


def _misbehave(width: int) -> None:
    if width == DIES:
        ctypes.string_at(0)
    if width in (HANGS, SLOW):
        time.sleep(3600 if width == HANGS else 0.5)
    while width == SPINS:
        pass
    if width == EATS:
        np.ones(1 << 33)
    if width == ESCAPES:
        _escape()
    if width == FAILS:
        raise TypeError("a bug")


def _escape() -> None:
    """Raises AssertionError if anything works."""
    attempts = [
        lambda: os.open("/proc/self/environ", os.O_RDONLY),
        lambda: os.open("/tmp/escaped", os.O_WRONLY | os.O_CREAT),
        lambda: os.dup(1),
        lambda: os.pipe(),
        lambda: os.memfd_create("more"),
        lambda: socket.socket(),
        os.fork,
        lambda: os.kill(os.getppid(), signal.SIGKILL),
        lambda: os.execv("/bin/true", ["true"]),
        lambda: os.listdir("/"),
        lambda: os.read(4, 1),  # of the files that it was handed, only the pipe is open, for writing
    ]
    for attempt in attempts:
        try:
            attempt()
        except OSError:
            continue
        raise AssertionError
    assert sorted(os.environ.keys() & {"HF_TOKEN", "API_KEY"}) == []


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], ToyProcessor, Limits(wall_seconds=WALL_SECONDS))

"""What the processes of a group tell each other, and how it is written. No JAX, and nothing that could run code.

A frame is a header, little-endian, and its payload: kind u8, number u64, length of the payload u64, crc32 of the
payload u32, crc32 of all that u32. TCP finds most of what a network does to a frame; the checksums find the rest, and a
launch with one wrong bit would be a wrong text that nobody notices.
"""

import enum
import json
import socket
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401 — NumPy knows bfloat16 by it
import numpy as np

HEADER, CHECKSUM = struct.Struct("<BQQI"), struct.Struct("<I")
INDEX = struct.Struct("<I")  # of an executable
ARRAY = struct.Struct("<16sB")  # name of the dtype, number of axes
LONGEST_FRAME = 1 << 34  # bytes; an adapter of a large model has a few 1 << 30
PART = 1 << 20  # bytes that are read at once: a long frame shows life meanwhile
LONGEST_ANSWER = 1 << 20  # bytes of what a follower sends


class Kind(enum.IntEnum):
    """Of a frame; what `number` and payload are. From leader to follower, but where it says otherwise."""

    CHALLENGE = 1  # random bytes
    HELLO = 2  # follower: what it says of itself, as JSON
    WELCOME = 3  # what the leader was started with, as JSON
    FACTS = 4  # follower: bytes of a device; what it has decided, as JSON
    PLAN = 5  # the sizes that the leader has decided, as JSON
    BUILT = 6  # follower: the index of an executable that it has
    LAUNCH = 7  # number of a launch; index of its executable and arrays
    SAMPLED = 8  # number of a launch that has sampled; the ids
    BEAT = 9  # both: the last launch that was told, or repeated
    ENDED = 10  # both: exit code; why the sender leaves


class BrokenLink(ConnectionError):
    """The other process is gone, or what it sends cannot be read."""


@dataclass(frozen=True)
class Frame:
    kind: Kind
    number: int = 0
    payload: bytes = b""

    @property
    def text(self) -> str:
        return self.payload.decode(errors="replace")

    @property
    def values(self) -> dict[str, Any]:
        """Of JSON. Raises BrokenLink if it is none."""
        try:
            values = json.loads(self.payload)
        except (ValueError, RecursionError) as error:
            raise BrokenLink(f"{self.kind.name} is not JSON") from error
        if not isinstance(values, dict):
            raise BrokenLink(f"{self.kind.name} is no JSON object")
        return values


def written(frame: Frame) -> bytes:
    """The bytes of a frame."""
    header = HEADER.pack(frame.kind, frame.number, len(frame.payload), zlib.crc32(frame.payload))
    return header + CHECKSUM.pack(zlib.crc32(header)) + frame.payload


def read_frame(
    connection: socket.socket, longest: int = LONGEST_FRAME, heard: Callable[[], None] = lambda: None
) -> Frame:
    """The next frame. `heard` is called whenever a part of it comes. Raises BrokenLink."""
    head = _exactly(connection, HEADER.size + CHECKSUM.size, heard)
    (checksum,) = CHECKSUM.unpack_from(head, HEADER.size)
    if zlib.crc32(head[: HEADER.size]) != checksum:
        raise BrokenLink("a frame was damaged on its way")
    kind, number, length, checksum = HEADER.unpack_from(head)
    if length > longest:
        raise BrokenLink(f"a frame of {length} bytes, more than {longest}")
    payload = _exactly(connection, length, heard)
    if zlib.crc32(payload) != checksum:
        raise BrokenLink("a frame was damaged on its way")
    try:
        return Frame(Kind(kind), number, payload)
    except ValueError:
        raise BrokenLink(f"a frame of kind {kind}, which this version does not know") from None


def _exactly(connection: socket.socket, size: int, heard: Callable[[], None]) -> bytes:
    received = bytearray(size)
    view = memoryview(received)
    try:
        while view:
            count = connection.recv_into(view, min(len(view), PART))
            if not count:
                raise BrokenLink("the connection was closed")
            heard()
            view = view[count:]
    except TimeoutError as error:
        raise BrokenLink("nothing was said in time") from error
    except BrokenLink:
        raise
    except OSError as error:
        raise BrokenLink(f"the connection has failed: {error.strerror}") from error
    return bytes(received)


def packed_launch(index: int, arrays: Sequence[np.ndarray]) -> bytes:
    """The payload of a LAUNCH."""
    return INDEX.pack(index) + packed_arrays(arrays)


def unpacked_launch(payload: bytes) -> tuple[int, list[np.ndarray]]:
    """The index of an executable, and the arrays that it is given. Raises BrokenLink."""
    if len(payload) < INDEX.size:
        raise BrokenLink("a LAUNCH without an index")
    return INDEX.unpack_from(payload)[0], unpacked_arrays(payload, INDEX.size)


def packed_arrays(arrays: Sequence[np.ndarray]) -> bytes:
    """Arrays of any dtype that NumPy and JAX know, one behind the other."""
    parts = []
    for each in map(np.asarray, arrays):
        parts += [ARRAY.pack(each.dtype.name.encode(), each.ndim), struct.pack(f"<{each.ndim}Q", *each.shape)]
        parts.append(each.tobytes())
    return b"".join(parts)


def unpacked_arrays(payload: bytes, start: int = 0) -> list[np.ndarray]:
    """The arrays that `packed_arrays` has written from byte `start` on."""
    arrays = []
    while start < len(payload):
        name, axes = ARRAY.unpack_from(payload, start)
        shape = struct.unpack_from(f"<{axes}Q", payload, start + ARRAY.size)
        start += ARRAY.size + 8 * axes
        dtype = np.dtype(name.rstrip(b"\0").decode())
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(payload, dtype, count, start).reshape(shape))
        start += count * dtype.itemsize
    return arrays

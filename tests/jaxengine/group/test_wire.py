"""Frames arrive as they were sent, or not at all."""

import socket
import threading
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxengine.group.wire import BrokenLink, Frame, Kind, packed_arrays, read_frame, unpacked_arrays, written

Sockets = tuple[socket.socket, socket.socket]


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def received(data: bytes) -> Frame:
    """What is read where `data` is sent and the connection closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(data)
        return read_frame(theirs)


@settings(deadline=None)
@given(st.sampled_from(Kind), st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_a_frame_arrives_as_it_was_sent(kind: Kind, number: int, payload: bytes) -> None:
    assert received(written(Frame(kind, number, payload))) == Frame(kind, number, payload)


@settings(deadline=None)
@given(st.data())
def test_a_frame_with_a_wrong_bit_is_not_taken(data: st.DataObject) -> None:
    sent = bytearray(written(Frame(Kind.LAUNCH, 7, b"launch this, please")))
    bit = data.draw(st.integers(0, 8 * len(sent) - 1))
    sent[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BrokenLink):
        received(bytes(sent))


@pytest.mark.parametrize("cut", [0, 1, 20, 25])
def test_a_frame_that_is_cut_is_not_taken(cut: int) -> None:
    with pytest.raises(BrokenLink, match="closed"):
        received(written(Frame(Kind.LAUNCH, 1, b"12345"))[:cut])


def test_a_frame_may_not_be_longer_than_is_allowed(sockets: Sockets) -> None:
    sockets[0].sendall(written(Frame(Kind.HELLO, payload=bytes(101))))
    with pytest.raises(BrokenLink, match="101 bytes, more than 100"):
        read_frame(sockets[1], longest=100)


def test_whoever_says_nothing_is_not_waited_for_for_ever(sockets: Sockets) -> None:
    sockets[1].settimeout(0.05)
    with pytest.raises(BrokenLink, match="nothing was said in time"):
        read_frame(sockets[1])


def test_a_long_frame_shows_life_while_it_comes() -> None:
    ours, theirs = socket.socketpair()
    heard: list[None] = []
    with ours, theirs:
        sending = threading.Thread(target=ours.sendall, args=(written(Frame(Kind.LAUNCH, payload=bytes(9_000_000))),))
        sending.start()
        read_frame(theirs, heard=lambda: heard.append(None))
        sending.join()
    assert len(heard) > 9


@pytest.mark.parametrize("payload", [b"[1]", b"{", b"\xff"])
def test_what_should_be_a_json_object_and_is_none_is_refused(payload: bytes) -> None:
    with pytest.raises(BrokenLink, match="HELLO is no"):
        _ = Frame(Kind.HELLO, payload=payload).values


def test_arrays_of_every_type_and_shape_arrive_as_they_were() -> None:
    arrays = [
        np.int32(7),
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.empty((0, 4), np.float32),
        np.array([1.5, np.nan, -np.inf], np.float32),
        np.array([[1, 2.5]], ml_dtypes.bfloat16),
        np.array([True, False]),
        np.arange(12, dtype=np.int32).reshape(3, 4).T,
    ]
    payload = b"head" + packed_arrays(arrays)  # type: ignore[arg-type]
    back = list(unpacked_arrays(payload, 4))
    assert [each.tobytes() for each in back] == [np.ascontiguousarray(each).tobytes() for each in arrays]
    assert [(each.dtype, each.shape) for each in back] == [(each.dtype, each.shape) for each in arrays]

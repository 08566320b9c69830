"""Whatever happens to one process of a group, the others end: soon, and saying which one it was."""

import os
import threading
import time

import numpy as np
import pytest

from jaxengine.group.wire import Frame, Kind, written
from jaxengine.options.group import GROUP_ENDED
from tests.jaxengine.group.processes import SECONDS, Group, met, until


def test_the_end_of_a_follower_ends_all() -> None:
    group = Group(hosts=3)
    _, followers = met(group)
    began = time.monotonic()
    followers[0][0]._the_link.close()
    reason, code = group.leader_ends.wait()
    assert reason.startswith("machine 1 has left the group") and code == os.EX_SOFTWARE
    told, code = followers[1][1].wait()
    assert told == f"machine 0 has ended the group: {reason}" and code == GROUP_ENDED
    assert time.monotonic() - began < 6


def test_a_follower_says_why_it_ends() -> None:
    group = Group()
    _, [(follower, _)] = met(group)
    follower.fail("launch 7 failed: out of memory")
    assert group.leader_ends.wait()[0] == "machine 1 has left the group: launch 7 failed: out of memory"


def test_the_end_of_the_leader_ends_the_followers() -> None:
    group = Group(hosts=3)
    leader, followers = met(group)
    for link in leader._links().values():
        link.close()
    for _, ends in followers:
        reason, code = ends.wait()
        assert reason.startswith("machine 0 has ") and code == GROUP_ENDED


def test_silence_of_a_follower_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stays open: so it is of a process that is stopped, or of a machine that is gone."""
    group = Group(hosts=3, patience=1.0)
    leader, followers = met(group)
    silent = followers[1][0]._the_link
    until(lambda: leader._links()[2].silence < 0.3)
    monkeypatch.setattr(silent, "send", lambda *_, **__: None)
    began = time.monotonic()
    reason, code = group.leader_ends.wait()
    assert reason.startswith("machine 2 has shown no life for ") and code == os.EX_SOFTWARE
    assert 0.5 < time.monotonic() - began < 6
    assert followers[0][1].wait()[1] == GROUP_ENDED


def test_silence_of_the_leader_ends_the_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(patience=1.0)
    leader, [(_, ends)] = met(group)
    monkeypatch.setattr(leader._links()[1], "send", lambda *_, **__: None)
    reason, code = ends.wait()
    assert reason.startswith("machine 0 has shown no life for ") and code == GROUP_ENDED


def test_a_group_at_rest_lasts() -> None:
    group = Group(patience=1.2)
    _, [(_, ends)] = met(group)
    time.sleep(3.0)
    assert not ends.noted and not group.leader_ends.noted


HUGE = np.zeros(1 << 24, np.int32)


def test_a_follower_that_takes_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader neither waits for it nor is kept from ending."""
    group = Group(patience=4.0)
    leader, [(follower, _)] = met(group)
    leader.number(["sample"])
    monkeypatch.setattr(follower._the_link, "receive", lambda: time.sleep(SECONDS))
    monkeypatch.setattr(follower._the_link, "send", lambda *_, **__: None)
    leader.tell(1, "sample", (HUGE,))
    assert not group.leader_ends.noted  # 64 MB take 0.8 s to write out on a busy machine
    assert "has shown no life" in group.leader_ends.wait()[0]


def test_one_that_takes_a_long_launch_slowly_lives_and_so_do_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(hosts=3, patience=1.5)
    leader, [(slow, ends), (_, others)] = met(group)
    leader.number(["place_adapter"])
    read, heard, paused = slow._the_link._note_life, threading.Event(), list[float]()

    def slowly() -> None:
        read()
        if heard.is_set() and sum(paused) < 2:
            paused.append(0.6)
            time.sleep(paused[-1])
        heard.set()

    monkeypatch.setattr(slow._the_link, "_note_life", slowly)
    assert heard.wait(SECONDS)  # a frame that was being received then is received as before
    leader.tell(1, "place_adapter", (HUGE,))
    frame = slow.next_frame(SECONDS)
    arrived, pauses = len(frame.payload) if frame else 0, sum(paused)  # short, should one of them be printed
    assert arrived > HUGE.nbytes and pauses >= 2
    assert not (ends.noted or others.noted or group.leader_ends.noted)


def test_a_wrong_bit_in_the_length_of_a_frame_is_found_on_a_living_line() -> None:
    group = Group()
    leader, [(_, ends)] = met(group)
    frame = bytearray(written(Frame(Kind.LAUNCH, 1, b"payload")))
    frame[12] ^= 1  # it would be 8 MB longer
    leader._links()[1]._connection.sendall(frame)
    assert ends.wait() == ("machine 0 has left: a frame was damaged on its way", GROUP_ENDED)


def test_a_follower_may_send_no_long_frames() -> None:
    group = Group()
    _, [(follower, _)] = met(group)
    follower._the_link.send(Kind.FACTS, bytes(1 << 21))
    assert "more than 1048576" in group.leader_ends.wait()[0]


def test_executables_are_ready_once_every_follower_has_them() -> None:
    group = Group(hosts=3)
    leader, followers = met(group)
    leader.number(["allocate", ("sample", 8, True)])
    waited = threading.Event()

    def wait() -> None:
        leader.await_built(["allocate"])
        waited.set()

    group.spawn(wait)
    followers[0][0].tell_built(0)
    until(lambda: 0 in leader._followers[1].built)
    assert not leader.has_built("allocate") and not waited.is_set()
    followers[1][0].tell_built(0)
    assert waited.wait(SECONDS)
    assert leader.has_built("allocate") and not leader.has_built(("sample", 8, True))


def test_launches_arrive_in_order_with_their_numbers() -> None:
    group = Group(hosts=3)
    leader, followers = met(group)
    leader.number(["allocate", "fill_slot"])
    for number in range(1, 50):
        leader.tell(number, "fill_slot", (np.full(3, number, np.int32),))
        leader.compare(number, np.full((2, 3), number, np.int32))
    for follower, _ in followers:
        frames = [follower.next_frame(SECONDS) for _ in range(98)]
        assert [each.kind for each in frames if each] == [Kind.LAUNCH, Kind.SAMPLED] * 49
        assert [each.number for each in frames if each] == [number for each in range(1, 50) for number in (each, each)]
        assert follower.next_frame(0.01) is None

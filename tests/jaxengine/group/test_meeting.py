"""Who is let into a group, who is not, and what all of it must have in common."""

import json
import os
import socket
import time
from dataclasses import replace
from typing import Any

import pytest

from jaxengine.group.leader import Leader
from jaxengine.group.link import let_in
from jaxengine.group.wire import BrokenLink, Frame, Kind, read_frame, written
from jaxengine.options.group import GROUP_ENDED
from jaxengine.telemetry.logs import USAGE
from tests.jaxengine.group.processes import HELLO, SECONDS, Group, met, until

WELCOME = {"port": 4711, "options": {"max_batch_size": 4}}


@pytest.mark.parametrize("hosts", [2, 4])
def test_a_complete_group_gets_the_leaders_welcome(hosts: int) -> None:
    group, heard = Group(hosts), list[Any]()
    leader = group.leader()
    followers = [group.follower(rank) for rank in range(1, hosts)]
    with group.gathering(leader, WELCOME):
        threads = [
            group.spawn(lambda each=each: heard.append(each.join(HELLO, lambda _: None))) for each, _ in followers
        ]
    for thread in threads:
        thread.join(SECONDS)
    assert heard == [WELCOME] * (hosts - 1)
    assert group.progress[0] == (0, hosts - 1)


def test_a_follower_may_come_long_before_the_leader() -> None:
    group, said = Group(), list[str]()
    follower, _ = group.follower()
    thread = group.spawn(lambda: follower.join(HELLO, said.append))
    time.sleep(0.3)
    with group.gathering(group.leader(), WELCOME):
        pass
    thread.join(SECONDS)
    assert said == [f"waiting for machine 0 at 127.0.0.1 port {group.port}", "waiting for the other machines"]


def test_whoever_has_another_key_is_not_let_in_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    group = Group()
    stranger, ends = group.follower(key=b"guess")
    follower, _ = group.follower()
    with group.gathering(group.leader(), WELCOME):
        group.spawn(lambda: stranger.join(HELLO, lambda _: None))
        until(lambda: "was not let in: it has another key" in caplog.text)
        until(lambda: "has another key than --group-key-file" in caplog.text)
        group.spawn(lambda: follower.join(HELLO, lambda _: None))
    assert not ends.noted


@pytest.mark.parametrize("said", [Frame(Kind.CHALLENGE, payload=b"0" * 32), Frame(Kind.ENDED, 64, b"go away")])
def test_whoever_lacks_the_key_is_not_followed_and_ends_nobody(said: Frame) -> None:
    """It may have taken the port while the leader starts anew."""
    group = Group()
    follower, ends = group.follower()
    with socket.create_server(("127.0.0.1", group.port)) as listener:
        group.spawn(lambda: follower.join(HELLO, lambda _: None))
        connection, _ = listener.accept()
        with connection:
            connection.sendall(written(Frame(Kind.CHALLENGE, payload=bytes(32))))
            assert read_frame(connection).kind is Kind.HELLO
            connection.sendall(written(said))
    with group.gathering(group.leader(), WELCOME):
        pass
    assert not ends.noted


def test_the_key_is_never_sent() -> None:
    """Nor is an answer that would do for another challenge."""
    group = Group(key=b"a secret of some length")
    with socket.create_server(("127.0.0.1", group.port)) as listener:
        hellos = []
        for _ in range(2):
            follower, _ends = group.follower()
            group.spawn(lambda each=follower: each.join(HELLO, lambda _: None))
            connection, _ = listener.accept()
            with connection:
                connection.sendall(written(Frame(Kind.CHALLENGE, payload=bytes(32))))
                hellos.append(read_frame(connection))
    assert all(group.key not in each.payload and group.key.hex().encode() not in each.payload for each in hellos)
    assert hellos[0].values["proof"] != hellos[1].values["proof"]


@pytest.mark.parametrize(
    ("hello", "rank", "reason"),
    [
        ({**HELLO, "jax": "0.11"}, 1, "it differs from machine 0: jax is 0.11 there and 0.10 here"),
        ({"jax": "0.10"}, 1, "it differs from machine 0: version is None there and 1 here"),
        (HELLO, 2, "--node-rank 2 is none of this group"),
        (HELLO, 0, "--node-rank 0 is none of this group"),
    ],
)
def test_whoever_does_not_belong_here_is_told_why(hello: dict[str, Any], rank: int, reason: str) -> None:
    group = Group()
    stranger, ends = group.follower(rank)
    follower, _ = group.follower()
    with group.gathering(group.leader(), WELCOME):
        group.spawn(lambda: stranger.join(hello, lambda _: None))
        assert ends.wait() == (f"machine 0 has ended the group: {reason}", USAGE)
        group.spawn(lambda: follower.join(HELLO, lambda _: None))


def test_no_two_machines_have_one_number() -> None:
    """The second tries again: the first may be one that has died, unnoticed yet."""
    group = Group(hosts=3)
    first, second, third = group.follower(1), group.follower(1), group.follower(2)
    with group.gathering(group.leader(), WELCOME):
        group.spawn(lambda: first[0].join(HELLO, lambda _: None))
        until(lambda: (1, 2) in group.progress)
        group.spawn(lambda: second[0].join(HELLO, lambda _: None))
        reason, code = second[1].wait()
        assert "machine 1 is here already, from 127.0.0.1" in reason and code == GROUP_ENDED
        group.spawn(lambda: third[0].join(HELLO, lambda _: None))
    assert not first[1].noted


def test_whoever_leaves_before_the_group_is_complete_may_come_back() -> None:
    group = Group(hosts=3)
    leader = group.leader()
    with group.gathering(leader, WELCOME):
        leaving, _ = group.follower(1)
        group.spawn(lambda: leaving.join(HELLO, lambda _: None))
        until(lambda: (1, 2) in group.progress and leaving._link is not None)  # the leader may know it first
        leaving._the_link.close()
        until(lambda: group.progress[-1] == (0, 2))
        for rank in (1, 2):
            group.spawn(lambda each=group.follower(rank)[0]: each.join(HELLO, lambda _: None))
    assert not group.leader_ends.noted


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n" * 5, bytes(40)])
def test_other_programs_that_connect_disturb_nobody(said: bytes) -> None:
    group = Group()
    follower, _ = group.follower()
    with group.gathering(group.leader(), WELCOME):
        time.sleep(0.1)
        with socket.create_connection(("127.0.0.1", group.port)) as connection:
            connection.sendall(said)
            group.spawn(lambda: follower.join(HELLO, lambda _: None))
            time.sleep(0.1)
    assert not group.failed


def hello(**changed: Any) -> bytes:
    values = {"hello": HELLO, "challenge": "00", "proof": "00", **changed}
    return written(Frame(Kind.HELLO, payload=json.dumps(values).encode()))


@pytest.mark.parametrize(
    "said",
    [
        hello(proof="\u00e9"),
        hello(proof=7),
        hello(challenge=None),
        hello(hello=[1]),
        written(Frame(Kind.HELLO, payload=b"[" * 60_000)),
        written(Frame(Kind.HELLO, payload=bytes(1 << 17))),
    ],
)
def test_whatever_a_stranger_says_it_is_let_go(said: bytes) -> None:
    group = Group()
    follower, _ = group.follower()
    with group.gathering(group.leader(), WELCOME):
        time.sleep(0.1)
        with socket.create_connection(("127.0.0.1", group.port), timeout=SECONDS) as connection:
            assert read_frame(connection).kind is Kind.CHALLENGE
            connection.sendall(said)
            with pytest.raises(BrokenLink, match=r"was closed|has failed"):
                read_frame(connection)
        group.spawn(lambda: follower.join(HELLO, lambda _: None))
    assert not group.failed


def test_a_handshake_has_an_end_however_slowly_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxengine.group.link.HANDSHAKE_SECONDS", 0.5)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        group = Group()
        ended = group.spawn(lambda: let_in(theirs, b"key"))
        data, began = hello(), time.monotonic()
        while ended.is_alive() and time.monotonic() < began + SECONDS:
            ours.sendall(data[:1])
            time.sleep(0.05)
        assert time.monotonic() - began < 5
    assert isinstance(group.failed[0], BrokenLink)


def test_one_that_cannot_be_accepted_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    group, accept, failures = Group(), socket.socket.accept, iter([OSError(24, "Too many open files")] * 2)

    def failing(listener: socket.socket) -> Any:
        if error := next(failures, None):
            raise error
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    follower, _ = group.follower()
    with group.gathering(group.leader(), WELCOME):
        group.spawn(lambda: follower.join(HELLO, lambda _: None))


def test_once_the_group_is_complete_nobody_is_listened_to() -> None:
    group = Group()
    met(group)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", group.port), timeout=SECONDS)


@pytest.mark.parametrize(
    ("address", "problem"), [("203.0.113.1", "Cannot assign requested address"), ("no.such.host.invalid", ".*")]
)
def test_an_address_that_this_machine_does_not_have_is_named(address: str, problem: str) -> None:
    group = Group()
    leader = Leader(replace(group.member(0), address=address), HELLO, group.leader_ends)
    with pytest.raises(ValueError, match=rf"^cannot listen on --master-addr {address} port \d+: {problem}"):
        leader.gather(dict, lambda *_: None)


FACTS = {"the model": "a", "a weight": "b"}


def test_all_must_have_decided_the_same() -> None:
    group = Group(hosts=3)
    leader, followers = met(group)
    agreed = list[Any]()
    for number, (each, _) in enumerate(followers):
        group.spawn(lambda each=each, number=number: agreed.append(each.agree(FACTS, 100 + number)))
    assert leader.agree(FACTS, 101) == 100, "the memory of the machine that has least"
    leader.plan({"pages": 9})
    until(lambda: len(agreed) == 2)
    assert agreed == [{"pages": 9}] * 2


def test_a_machine_with_other_weights_ends_and_the_leader_waits_for_a_better_one() -> None:
    group = Group(hosts=3)
    leader, followers = met(group)
    for number, (each, _) in enumerate(followers):
        group.spawn(lambda each=each, number=number: each.agree({**FACTS, "a weight": "bc"[number]}, 0))
    group.spawn(lambda: leader.agree(FACTS, 0))
    reason = "machine 2 differs from machine 0: a weight is c there and b here"
    assert group.leader_ends.wait() == (reason, os.EX_SOFTWARE)
    assert followers[1][1].wait() == (f"machine 0 has ended the group: {reason}", USAGE)
    assert followers[0][1].wait()[1] == GROUP_ENDED

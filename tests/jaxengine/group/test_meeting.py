"""Who is let into a group, who is not, and what all of it must have in common."""

import os
import socket
import threading
import time
from typing import Any

import pytest

from jaxengine.group.link import HANDSHAKE_SECONDS
from jaxengine.group.wire import Frame, Kind, read_frame, written
from jaxengine.options.group import GROUP_ENDED
from jaxengine.telemetry.logs import USAGE
from tests.jaxengine.group.processes import HELLO, SECONDS, Group, met

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
    assert said[0] == f"looking for machine 0 at 127.0.0.1 port {group.port}"
    assert said[-1] == "waiting for the other machines"


def test_whoever_has_another_key_is_not_let_in_and_gives_up() -> None:
    group = Group()
    stranger, ends = group.follower(key=b"guess")
    follower, _ = group.follower()
    with group.gathering(group.leader(), WELCOME):
        group.spawn(lambda: stranger.join(HELLO, lambda _: None))
        assert ends.wait() == ("machine 0 has another key in its --group-key-file", USAGE)
        group.spawn(lambda: follower.join(HELLO, lambda _: None))


def test_a_follower_does_not_follow_whoever_lacks_the_key() -> None:
    group = Group()
    with socket.create_server(("127.0.0.1", group.port)) as listener:
        follower, ends = group.follower()
        group.spawn(lambda: follower.join(HELLO, lambda _: None))
        connection, _ = listener.accept()
        with connection:
            connection.sendall(written(Frame(Kind.CHALLENGE, payload=bytes(32))))
            assert read_frame(connection).kind is Kind.HELLO
            connection.sendall(written(Frame(Kind.CHALLENGE, payload=b"0" * 64)))
            assert ends.wait()[1] == USAGE


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
        while (1, 2) not in group.progress:
            time.sleep(0.01)
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
        while (1, 2) not in group.progress:
            time.sleep(0.01)
        leaving._the_link.close()
        while group.progress[-1] != (0, 2):
            time.sleep(0.01)
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
    assert not group.failed and HANDSHAKE_SECONDS < SECONDS


def test_an_address_that_this_machine_does_not_have_is_named() -> None:
    group = Group()
    with pytest.raises(ValueError, match=r"cannot listen on --master-addr 203\.0\.113\.1 port \d+: Cannot assign"):
        from dataclasses import replace

        from jaxengine.group.leader import Leader

        Leader(replace(group.member(0), address="203.0.113.1"), HELLO, group.leader_ends).gather({}, lambda *_: None)


FACTS = {"the model": "a", "a weight": "b"}


def test_all_must_have_decided_the_same() -> None:
    group = Group(hosts=3)
    leader, followers = met(group)
    agreed = list[Any]()
    for number, (each, _) in enumerate(followers):
        group.spawn(lambda each=each, number=number: agreed.append(each.agree(FACTS, 100 + number)))
    assert leader.agree(FACTS, 101) == 100, "the memory of the machine that has least"
    leader.plan({"pages": 9})
    deadline = time.monotonic() + SECONDS
    while len(agreed) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
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
    assert threading.active_count() < 200

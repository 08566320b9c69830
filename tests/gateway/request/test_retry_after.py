"""What refused clients are told brings them back when there is room: no earlier, so that they are not refused again and
again, and no later, so that no permit stands idle.

A crowd of clients on a clock of its own asks the gateway's real admission. Each does as it is told, or not; one that
is answered asks again at once, the worst neighbour a waiting client can have. Service times are as wide as those of
answers of all lengths.
"""

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.request.admission import MAX_TURNOVERS, Admission, Overloaded, Ticket
from gateway.request.shared_counters import SharedCounters
from gateway.request.waiting_line import PATIENCE
from jaxengine.rpc import engine_pb2 as pb

CLIENTS, PERMITS = 600, 128
SERVICE_SECONDS, SPREAD = 11.0, 0.6  # mean, and standard deviation by mean
ROUND_TRIP = 0.01
Advice = Callable[[int, int], float]  # of a client's number and what it was told, the seconds it stays away


def obedient(client: int, told: int) -> float:
    return told


@dataclass
class Crowd:
    """Clients of a server, and what becomes of them.

    Args:
        processes: of the server; which of them a request reaches is chance.
        arrival: seconds within which all have come for the first time.
        heeds: what a client makes of Retry-After.
    """

    seconds: float
    clients: int = CLIENTS
    permits: int = PERMITS
    arrival: float = 0.05
    service: float = SERVICE_SECONDS
    heeds: Advice = obedient
    shared: Sequence[SharedCounters] = ()
    now: float = 0.0
    answered: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    told: list[int] = field(default_factory=list)
    full: float = math.inf  # when somebody was first refused
    busy: float = 0.0  # permit-seconds since

    def __post_init__(self) -> None:
        self._chance = random.Random(1)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._doors = [
            Admission(self.permits, 1 << 30, counters, clock=lambda: self.now, chance=self._chance.random)
            for counters in self.shared or [SharedCounters()]
        ]

    def run(self) -> "Crowd":
        for client in range(self.clients):
            self._at(self._chance.uniform(0, self.arrival), lambda client=client: self._ask(client))
        while self._events[0][0] < self.seconds:
            moment, _, event = heapq.heappop(self._events)
            if self.now >= self.full:
                self.busy += self._doors[0].active * (moment - self.now)
            self.now = moment
            event()
        return self

    @property
    def utilisation(self) -> float:
        return self.busy / (self.permits * (self.now - self.full))

    def refusals_per_answer(self, first: int = 0) -> float:
        """Of all clients from number `first` on."""
        refused, answered = (
            sum(count[each] for each in count if each >= first) for count in (self.refused, self.answered)
        )
        return refused / answered

    def _at(self, moment: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), event))

    def _ask(self, client: int) -> None:
        request = self._chance.choice(self._doors).request()
        try:
            ticket = request.__enter__()
        except Overloaded as refusal:
            assert refusal.retry_after is not None
            self.full = min(self.full, self.now)
            self.refused[client] += 1
            self.told.append(refusal.retry_after)
            self._return(client, self.heeds(client, refusal.retry_after))
            return
        ticket.started()
        self._at(self.now + self._service(), lambda: self._answer(client, request))

    def _answer(self, client: int, request: AbstractContextManager[Ticket]) -> None:
        request.__exit__(None, None, None)
        self.answered[client] += 1
        self._return(client, 0)

    def _return(self, client: int, away: float) -> None:
        self._at(self.now + away + self._chance.uniform(0.5, 1.5) * ROUND_TRIP, lambda: self._ask(client))

    def _service(self) -> float:
        sigma = math.sqrt(math.log(1 + SPREAD**2))
        return self._chance.lognormvariate(math.log(self.service) - sigma**2 / 2, sigma)


@pytest.fixture(scope="module", params=[0.05, 60], ids=["all at once", "one after the other"])
def crowd(request: pytest.FixtureRequest) -> Crowd:
    return Crowd(seconds=300, arrival=request.param).run()


def test_a_success_costs_one_refusal_or_two(crowd: Crowd) -> None:
    assert crowd.refusals_per_answer() <= 2  # it was 40 when all were told to come again after a second


def test_no_permit_stands_idle_because_everybody_was_told_to_come_too_late(crowd: Crowd) -> None:
    assert crowd.utilisation >= 0.95


def test_who_waits_is_not_starved_by_who_asks_again_at_once(crowd: Crowd) -> None:
    assert len(crowd.answered) == CLIENTS


def test_advice_is_a_whole_number_of_seconds_within_its_bounds_and_differs(crowd: Crowd) -> None:
    assert {type(told) for told in crowd.told} == {int}
    assert min(crowd.told) == 1 and max(crowd.told) <= 60 and len(set(crowd.told)) > 20


@pytest.mark.parametrize(("service", "permits", "clients"), [(1, 128, 600), (2, 12, 60), (10, 4, 20)])
def test_so_it_is_for_quick_answers_and_small_servers(service: float, permits: int, clients: int) -> None:
    crowd = Crowd(100 * service, permits=permits, clients=clients, service=service, arrival=service).run()
    assert crowd.refusals_per_answer() <= 2 and crowd.utilisation >= 0.95
    assert len(crowd.answered) == clients


def test_several_processes_promise_no_permit_twice(tmp_path: Path) -> None:
    SharedCounters.create(tmp_path / "counters", rows=4, callers=1)
    shared = [SharedCounters(row=row, rows=4, file=tmp_path / "counters") for row in range(4)]
    crowd = Crowd(300, shared=shared).run()
    assert crowd.refusals_per_answer() <= 2 and crowd.utilisation >= 0.95


def test_who_ignores_the_advice_does_not_spoil_it_for_others() -> None:
    """Of the clients one in twenty asks ten times a second."""
    few = CLIENTS // 20
    among_all = Crowd(300, service=5).run()
    beside_them = Crowd(300, service=5, heeds=lambda client, told: 0.1 if client < few else told).run()
    others = sum(beside_them.answered[client] for client in range(few, CLIENTS))
    fair = among_all.answered.total() * (CLIENTS - few) / CLIENTS
    assert beside_them.refusals_per_answer(few) <= 2 and others >= 0.8 * fair
    assert len(beside_them.answered) == CLIENTS


def refusal(admission: Admission, copies: int = 1, caller: int = 0) -> int:
    """What a request is told that is refused. Fails if it is not."""
    with pytest.raises(Overloaded) as refused, admission.request(copies, caller):
        pass
    assert refused.value.retry_after is not None
    return refused.value.retry_after


class Hand:
    """A clock set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hand() -> Hand:
    return Hand()


@contextmanager
def full(hand: Hand, permits: int, holding: float) -> Iterator[Admission]:
    """A server whose permits were held for `holding` seconds each, and all are again."""
    admission = Admission(permits, 10**6, clock=hand, chance=lambda: 0)
    with admission.request(permits) as ticket:
        ticket.started()
        hand.now += holding
    with admission.request(permits):
        yield admission


def test_each_refusal_is_told_the_next_permit(hand: Hand) -> None:
    with full(hand, permits=4, holding=8) as admission:
        assert [refusal(admission) for _ in range(3)] == [2, 4, 6]
        assert refusal(admission, copies=2) == 10


def test_bookings_pass_with_time(hand: Hand) -> None:
    with full(hand, permits=4, holding=8) as admission:
        assert [refusal(admission) for _ in range(4)][-1] == 8
        hand.now += 8
        assert refusal(admission) == 2


@pytest.mark.parametrize(("holding", "most"), [(8, 8 * MAX_TURNOVERS), (100, 60)])
def test_no_more_is_promised_than_comes_back_in_a_few_turns(hand: Hand, holding: float, most: int) -> None:
    with full(hand, permits=4, holding=holding) as admission:
        assert max(refusal(admission) for _ in range(1000)) == most


def test_requests_that_failed_at_once_say_nothing_of_how_long_one_takes(hand: Hand) -> None:
    with full(hand, permits=4, holding=8) as admission:
        pass
    for _ in range(1000):
        with admission.request():
            hand.now += 0.001
    with admission.request(4):
        assert refusal(admission) == 2


def test_long_requests_behind_short_ones_are_noticed_before_they_end(hand: Hand) -> None:
    with full(hand, permits=4, holding=0.125) as admission:
        assert refusal(admission) == 1
        hand.now += 40
        assert refusal(admission) == 10


def test_who_is_refused_for_its_share_waits_for_its_own_permits(hand: Hand) -> None:
    admission = Admission(10, 10**6, SharedCounters(callers=2), clock=hand, chance=lambda: 0)
    with admission.request(8) as ticket:
        ticket.started()
        hand.now += 16
    with admission.request(8):
        assert [refusal(admission, caller=0) for _ in range(2)] == [2, 4]
        with admission.request(caller=1):
            pass


def test_a_prompt_beyond_the_queue_waits_until_so_much_is_computed(hand: Hand) -> None:
    admission = Admission(10, 1000, clock=hand, chance=lambda: 0)
    admission.throughput.observe(pb.Stats(step_prefill_tokens=100, step_seconds=1))
    with admission.request() as first, admission.request() as second:
        first.queue(1000)
        for seconds in (3, 6):
            with pytest.raises(Overloaded) as refused:
                second.queue(300)
            assert refused.value.retry_after == seconds


@pytest.fixture
def told(hand: Hand) -> Admission:
    """A server whose only permit has just come back, half a second before one that was refused is to return."""
    admission = Admission(1, 10**6, clock=hand, chance=lambda: 0)
    with admission.request() as ticket:
        ticket.started()
        hand.now += 20
    with admission.request():
        assert refusal(admission) == 20
        hand.now += 19.5
    return admission


def test_a_permit_is_kept_for_who_is_about_to_return(told: Admission, hand: Hand) -> None:
    assert refusal(told)
    hand.now += 0.5
    with told.request():
        pass


def test_a_permit_that_nobody_calls_for_is_anybodys(told: Admission, hand: Hand) -> None:
    hand.now += 0.5 + PATIENCE + 0.1
    for _ in range(3):
        with told.request():
            pass

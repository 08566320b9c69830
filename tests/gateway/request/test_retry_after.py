"""Retry-After brings refused clients back when a permit is free: no earlier, so that they are not refused again, and no
later, so that no permit is idle.

A crowd of clients, with a simulated clock, asks the gateway's real admission. A client follows the advice, or not; one
that is answered asks again at once, which is the worst neighbour of a waiting client. Service times vary as those of
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
from gateway.request.retry_bookings import PATIENCE
from gateway.request.shared_counters import SharedCounters
from jaxengine.rpc import engine_pb2 as pb

CLIENTS, PERMITS = 600, 128
SERVICE_SECONDS, SPREAD = 11.0, 0.6  # mean, and standard deviation divided by the mean
ROUND_TRIP = 0.01
Behaviour = Callable[[int, int], float]  # from a client's number and its advice to the seconds it stays away


def obedient(client: int, advice: int) -> float:
    return advice


@dataclass
class Crowd:
    """A simulation of clients and one server.

    Args:
        seconds: length of the simulation.
        arrival: seconds within which all clients come for the first time.
        service: mean seconds of an answer.
        behaviour: how long a refused client stays away.
        shared: counters of the server's processes, of which each request reaches a random one.
    """

    seconds: float
    clients: int = CLIENTS
    permits: int = PERMITS
    arrival: float = 0.05
    service: float = SERVICE_SECONDS
    behaviour: Behaviour = obedient
    shared: Sequence[SharedCounters] = ()
    now: float = 0.0
    answered: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    advice: list[int] = field(default_factory=list)
    full: float = math.inf  # moment of the first refusal
    busy: float = 0.0  # permit-seconds since then

    def __post_init__(self) -> None:
        self._chance = random.Random(1)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._admissions = [
            Admission(self.permits, 1 << 30, counters, clock=lambda: self.now, chance=self._chance.random)
            for counters in self.shared or [SharedCounters()]
        ]

    def run(self) -> "Crowd":
        for client in range(self.clients):
            self._at(self._chance.uniform(0, self.arrival), lambda client=client: self._ask(client))
        while self._events[0][0] < self.seconds:
            moment, _, event = heapq.heappop(self._events)
            if self.now >= self.full:
                self.busy += self._admissions[0].active * (moment - self.now)
            self.now = moment
            event()
        return self

    @property
    def utilisation(self) -> float:
        return self.busy / (self.permits * (self.now - self.full))

    def refusals_per_answer(self, first: int = 0) -> float:
        """Refusals for each answer, of the clients from number `first` on."""
        refused, answered = (
            sum(count[each] for each in count if each >= first) for count in (self.refused, self.answered)
        )
        return refused / answered

    def _at(self, moment: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), event))

    def _ask(self, client: int) -> None:
        request = self._chance.choice(self._admissions).request()
        try:
            ticket = request.__enter__()
        except Overloaded as refusal:
            assert refusal.retry_after is not None
            self.full = min(self.full, self.now)
            self.refused[client] += 1
            self.advice.append(refusal.retry_after)
            self._return(client, self.behaviour(client, refusal.retry_after))
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


def test_an_answer_costs_at_most_two_refusals(crowd: Crowd) -> None:
    assert crowd.refusals_per_answer() <= 2  # 40 if all are told to come again after a second


def test_permits_are_nearly_always_in_use(crowd: Crowd) -> None:
    assert crowd.utilisation >= 0.95


def test_clients_that_ask_again_at_once_starve_no_waiting_client(crowd: Crowd) -> None:
    assert len(crowd.answered) == CLIENTS


def test_advice_is_whole_seconds_within_bounds_and_spread(crowd: Crowd) -> None:
    assert {type(each) for each in crowd.advice} == {int}
    assert min(crowd.advice) == 1 and max(crowd.advice) <= 60 and len(set(crowd.advice)) > 20


@pytest.mark.parametrize(("service", "permits", "clients"), [(1, 128, 600), (2, 12, 60), (10, 4, 20)])
def test_the_same_holds_for_quick_answers_and_small_servers(service: float, permits: int, clients: int) -> None:
    crowd = Crowd(100 * service, permits=permits, clients=clients, service=service, arrival=service).run()
    assert crowd.refusals_per_answer() <= 2 and crowd.utilisation >= 0.95
    assert len(crowd.answered) == clients


def test_several_processes_promise_no_permit_twice(tmp_path: Path) -> None:
    SharedCounters.create(tmp_path / "counters", rows=4, callers=1)
    shared = [SharedCounters(row=row, rows=4, file=tmp_path / "counters") for row in range(4)]
    crowd = Crowd(300, shared=shared).run()
    assert crowd.refusals_per_answer() <= 2 and crowd.utilisation >= 0.95


def test_clients_that_ignore_the_advice_do_not_harm_the_others() -> None:
    """One client in twenty asks ten times a second."""
    few = CLIENTS // 20
    among_all = Crowd(300, service=5).run()
    beside_them = Crowd(300, service=5, behaviour=lambda client, advice: 0.1 if client < few else advice).run()
    others = sum(beside_them.answered[client] for client in range(few, CLIENTS))
    fair = among_all.answered.total() * (CLIENTS - few) / CLIENTS
    assert beside_them.refusals_per_answer(few) <= 2 and others >= 0.8 * fair
    assert len(beside_them.answered) == CLIENTS


def refusal(admission: Admission, copies: int = 1, caller: int = 0) -> int:
    """The advice of a refused request. Fails if the request is admitted."""
    with pytest.raises(Overloaded) as refused, admission.request(copies, caller):
        pass
    assert refused.value.retry_after is not None
    return refused.value.retry_after


class ManualClock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@contextmanager
def full(clock: ManualClock, permits: int, holding: float) -> Iterator[Admission]:
    """A server whose permits were held for `holding` seconds each, and are all held again."""
    admission = Admission(permits, 10**6, clock=clock, chance=lambda: 0)
    with admission.request(permits) as ticket:
        ticket.started()
        clock.now += holding
    with admission.request(permits):
        yield admission


def test_each_refusal_is_advised_of_the_next_permit(clock: ManualClock) -> None:
    with full(clock, permits=4, holding=8) as admission:
        assert [refusal(admission) for _ in range(3)] == [2, 4, 6]
        assert refusal(admission, copies=2) == 10


def test_bookings_pass_with_time(clock: ManualClock) -> None:
    with full(clock, permits=4, holding=8) as admission:
        assert [refusal(admission) for _ in range(4)][-1] == 8
        clock.now += 8
        assert refusal(admission) == 2


@pytest.mark.parametrize(("holding", "most"), [(8, 8 * MAX_TURNOVERS), (100, 60)])
def test_promises_reach_no_further_than_a_few_turnovers(clock: ManualClock, holding: float, most: int) -> None:
    with full(clock, permits=4, holding=holding) as admission:
        assert max(refusal(admission) for _ in range(1000)) == most


def test_requests_that_fail_at_once_do_not_count_for_the_holding_time(clock: ManualClock) -> None:
    with full(clock, permits=4, holding=8) as admission:
        pass
    for _ in range(1000):
        with admission.request():
            clock.now += 0.001
    with admission.request(4):
        assert refusal(admission) == 2


def test_long_requests_after_short_ones_are_noticed_before_they_end(clock: ManualClock) -> None:
    with full(clock, permits=4, holding=0.125) as admission:
        assert refusal(admission) == 1
        clock.now += 40
        assert refusal(admission) == 10


def test_a_caller_above_its_threshold_waits_for_its_own_permits(clock: ManualClock) -> None:
    admission = Admission(10, 10**6, SharedCounters(callers=2), clock=clock, chance=lambda: 0)
    with admission.request(8) as ticket:
        ticket.started()
        clock.now += 16
    with admission.request(8):
        assert [refusal(admission, caller=0) for _ in range(2)] == [2, 4]
        with admission.request(caller=1):
            pass


def test_a_prompt_that_does_not_fit_the_queue_waits_until_enough_is_computed(clock: ManualClock) -> None:
    admission = Admission(10, 1000, clock=clock, chance=lambda: 0)
    admission.throughput.observe(0, pb.Stats(step_prefill_tokens=100, step_seconds=1))
    with admission.request() as first, admission.request() as second:
        first.queue(1000)
        for seconds in (3, 6):
            with pytest.raises(Overloaded) as refused:
                second.queue(300)
            assert refused.value.retry_after == seconds


@pytest.fixture
def promised(clock: ManualClock) -> Admission:
    """A server whose only permit has just come back, half a second before a refused client is due."""
    admission = Admission(1, 10**6, clock=clock, chance=lambda: 0)
    with admission.request() as ticket:
        ticket.started()
        clock.now += 20
    with admission.request():
        assert refusal(admission) == 20
        clock.now += 19.5
    return admission


def test_a_permit_is_kept_for_a_client_that_is_about_to_return(promised: Admission, clock: ManualClock) -> None:
    assert refusal(promised)
    clock.now += 0.5
    with promised.request():
        pass


def test_a_permit_that_no_client_claims_is_free_for_all(promised: Admission, clock: ManualClock) -> None:
    clock.now += 0.5 + PATIENCE + 0.1
    for _ in range(3):
        with promised.request():
            pass

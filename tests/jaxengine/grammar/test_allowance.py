"""A text may take so much processor time for each token, may save some of it, and pays for nothing else."""

import time

import pytest

from jaxengine.grammar import allowance
from jaxengine.grammar.allowance import Allowance


def work(seconds: float) -> None:
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


@pytest.fixture(autouse=True)
def amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "SAVED", 0.02)
    monkeypatch.setattr(allowance, "PER_TOKEN", 0.01)


def test_what_is_saved_may_be_spent_at_once_and_no_more() -> None:
    one = Allowance()
    for _ in range(100):
        one.earn()
    with one:
        work(0.015)
    assert not one.exceeded
    with one:
        work(0.01)
    assert one.exceeded


def test_each_token_earns_some() -> None:
    one = Allowance()
    for _ in range(10):
        with one:
            work(0.009)
        one.earn()
    assert not one.exceeded


def test_waiting_costs_nothing() -> None:
    one = Allowance()
    with one:
        time.sleep(0.05)
    assert not one.exceeded

"""Compiling in the background: what serving waits for, what it does not, and what a failure does."""

import threading

import pytest

from jaxengine.executables import Executables


def quiet(done: int, total: int) -> None:
    pass


def test_serving_waits_for_the_essential_ones_only() -> None:
    gate = threading.Event()
    jobs = {"later": lambda: gate.wait(10) and (lambda: 2), "first": lambda: lambda: 1}
    executables = Executables(jobs, ["first"], quiet)
    executables.build_rest()
    assert executables["first"]() == 1
    assert "later" not in executables
    gate.set()
    executables.finish()
    assert executables["later"]() == 2


def test_progress_counts_the_essential_ones_to_the_end() -> None:
    told: list[tuple[int, int]] = []
    jobs = {name: lambda: print for name in "abcd"}
    Executables(jobs, ["c", "a"], lambda done, total: told.append((done, total)))
    assert told[-1] == (2, 2)
    assert sorted(told) == told


def broken() -> object:
    raise ValueError("does not compile")


def test_an_essential_one_that_fails_is_the_constructors_failure() -> None:
    with pytest.raises(ValueError, match="does not compile"):
        Executables({"first": broken}, ["first"], quiet)  # type: ignore[dict-item]


def test_a_later_one_that_fails_is_logged_and_stays_missing(caplog: pytest.LogCaptureFixture) -> None:
    executables = Executables({"first": lambda: print, "later": broken}, ["first"], quiet)  # type: ignore[dict-item]
    executables.build_rest()
    executables.finish()
    assert "later" not in executables
    assert "compiling later failed" in caplog.text


def test_closing_leaves_the_rest_uncompiled() -> None:
    started, gate = threading.Semaphore(0), threading.Event()

    def slow() -> object:
        started.release()
        gate.wait(10)
        return print

    jobs = {"first": lambda: print} | {f"later {i}": slow for i in range(50)}
    executables = Executables(jobs, ["first"], quiet)  # type: ignore[arg-type]
    executables.build_rest()
    started.acquire(timeout=10)
    threading.Timer(0.1, gate.set).start()
    executables.close()
    assert sum(f"later {i}" in executables for i in range(50)) < 50

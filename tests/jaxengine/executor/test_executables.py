"""Compiling in the background: what serving waits for, what it does not, and what a failure does."""

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import pytest

from jaxengine.executor.executables import Executables


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


def test_a_later_one_that_fails_once_is_built_when_no_other_is_being_built(caplog: pytest.LogCaptureFixture) -> None:
    at_work, alone = [0], []

    def building(finds_memory: Callable[[], bool]) -> Callable[[], None]:
        at_work[0] += 1
        try:
            time.sleep(0.05)
            if not finds_memory():
                raise ValueError("no memory to time a product")
            return lambda: None
        finally:
            at_work[0] -= 1

    def greedy() -> bool:
        alone.append(at_work[0] == 1)
        return len(alone) > 1

    others = {name: partial(building, lambda: True) for name in "abcdefgh"}
    executables = Executables({"first": lambda: print, "big": partial(building, greedy), **others}, ["first"], quiet)
    executables.build_rest()
    executables.finish()
    assert all(name in executables for name in ["big", *others])
    assert len(alone) == 2 and alone[1]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_later_ones_are_built_with_a_priority_lower_than_the_starters_whatever_that_is() -> None:
    """Only root may set a priority that is higher than its own, as 10 is to a server that was started with 15."""
    seen: list[int] = []

    def job() -> Callable[[], None]:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return lambda: None

    def begin() -> None:
        os.nice(15)  # of this thread and those that it starts
        executables = Executables({"first": lambda: print, "later": job}, ["first"], quiet)
        executables.build_rest()
        executables.finish()

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    assert seen == [19]


def test_once_all_are_built_nothing_keeps_them() -> None:
    executables = Executables({"a": lambda: print, "b": lambda: print}, ["a"], lambda *_: None)
    executables.build_rest()
    executables.finish()
    kept = weakref.ref(executables)
    del executables
    gc.collect()
    assert kept() is None


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


def compiled(number: int) -> object:
    """Afresh, or from the cache if this was compiled before."""
    return jax.jit(lambda x: x * number + 1).lower(jax.ShapeDtypeStruct((3,), "float32")).compile()


class Elsewhere:
    """In place of a compile process: it takes note of what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def compile(self, name: object) -> None:
        self.asked.append(name)

    def close(self) -> None:
        self.asked.append("closed")


def test_only_what_the_compile_cache_lacks_is_compiled_elsewhere(empty_compile_cache: Path) -> None:
    jobs = {number: partial(compiled, number) for number in (101, 102, 103)}
    first = Executables(jobs, [101, 102], quiet)  # type: ignore[arg-type]
    asked_of_new, asked_of_cached = Elsewhere(), Elsewhere()
    first.build_rest(asked_of_new)  # type: ignore[arg-type]
    first.finish()
    assert 103 in first and asked_of_new.asked == [103, "closed"]
    again = Executables(jobs, [101, 102], quiet)  # type: ignore[arg-type]
    again.build_rest(asked_of_cached)  # type: ignore[arg-type]
    again.finish()
    assert 103 in again and asked_of_cached.asked == ["closed"]


def test_what_another_process_could_not_compile_is_compiled_here() -> None:
    jobs = {"first": lambda: print, "later": lambda: print}
    executables = Executables(jobs, ["first"], quiet)
    executables.build_rest(Elsewhere())  # type: ignore[arg-type]
    executables.finish()
    assert "later" in executables

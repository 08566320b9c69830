"""What compiles beside a server yields to its steps, and never keeps it from having everything compiled."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import pytest

from jaxengine.executor import compile_process
from jaxengine.executor.compile_cache import COMPILES
from jaxengine.executor.compile_process import CompileProcess
from jaxengine.executor.executables import Executables
from tests.processes import PATIENCE, ROOT, gone
from tests.servers import children

FOR_EVER = 1e6  # seconds


@dataclass(frozen=True)
class Numbers:
    """A recipe of small executables, of which each is named by a number."""

    def jobs(self, compile_cache: Path) -> dict[object, Callable[[], object]]:
        return {number: partial(compiled, number) for number in range(200, 210)}


@dataclass(frozen=True)
class Endless:
    """A recipe of what takes for ever."""

    def jobs(self, compile_cache: Path) -> dict[object, Callable[[], object]]:
        return {"later": partial(time.sleep, FOR_EVER)}


def compiled(number: int) -> object:
    return jax.jit(lambda x: x * number + 1).lower(jax.ShapeDtypeStruct((3,), "float32")).compile()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipes above are found by the process, and it gets its share of a machine that is busy."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(compile_process, "POLICY", os.SCHED_OTHER)


@pytest.fixture
def processes() -> Iterator[Callable[[], list[int]]]:
    """The processes that a test has started so far. Fails if one is left over."""
    before = {*children(os.getpid())}
    yield lambda: [pid for pid in children(os.getpid()) if pid not in before]
    assert not {*children(os.getpid())} - before


Processes = Callable[[], list[int]]


def executables(elsewhere: CompileProcess) -> Executables:
    """A server's, which has "first" and still lacks "later"."""
    made = Executables({"first": lambda: print, "later": lambda: print}, ["first"], lambda *_: None)
    made.build_rest(elsewhere)
    return made


def started(processes: Processes) -> int:
    """The id of the process that the server started, as soon as there is one."""
    deadline = time.monotonic() + PATIENCE
    while not (found := processes()):
        assert time.monotonic() < deadline, "no process was started"
        time.sleep(0.01)
    return found[0]


def wait_until_begun(process: int) -> None:
    """Until it leaves signals to the server, which is what it does last before it compiles."""
    ignored = 1 << signal.SIGTERM - 1 | 1 << signal.SIGINT - 1
    deadline = time.monotonic() + PATIENCE
    while int(re.findall(r"SigIgn:\s*(\w+)", Path(f"/proc/{process}/status").read_text())[0], 16) & ignored != ignored:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_thread_of_the_process_runs_at_idle_priority(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_process, "POLICY", os.SCHED_IDLE)
    elsewhere = CompileProcess(Endless(), tmp_path)
    made = executables(elsewhere)
    process = started(processes)
    while os.sched_getscheduler(process) != os.SCHED_IDLE:
        time.sleep(0.01)
    threads = map(int, os.listdir(f"/proc/{process}/task"))
    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_IDLE}
    made.close()


def test_what_it_compiled_comes_from_the_compile_cache(
    empty_compile_cache: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_process, "STARVED_SECONDS", FOR_EVER)
    elsewhere = CompileProcess(Numbers(), empty_compile_cache)
    for number in (200, 203):
        elsewhere.compile(number)
        with COMPILES.expected():
            compiled(number)
        assert COMPILES.hit
    elsewhere.close()


def test_a_server_waits_for_a_starved_process_no_longer_than_it_says(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_process, "STARVED_SECONDS", 0.1)
    made = executables(CompileProcess(Endless(), tmp_path))
    made.finish()
    assert "later" in made


def test_a_server_compiles_by_itself_when_the_process_dies(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compile_process, "STARVED_SECONDS", FOR_EVER)
    made = executables(CompileProcess(Endless(), tmp_path))
    os.kill(started(processes), signal.SIGKILL)
    made.finish()
    assert "later" in made
    assert "the compile process ended" in caplog.text


def test_the_process_takes_no_accelerator_and_leaves_signals_to_the_server(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    made = executables(CompileProcess(Endless(), tmp_path))
    process = started(processes)
    wait_until_begun(process)
    assert b"JAX_PLATFORMS=cpu" in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    made.close()


def test_a_process_whose_results_do_not_reach_the_cache_is_given_up(
    tmp_path: Path, empty_compile_cache: Path, processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise everything would be compiled twice."""
    jobs = {number: partial(compiled, number) for number in range(205, 208)}
    made = Executables(jobs, [205], lambda *_: None)
    made.build_rest(CompileProcess(Numbers(), tmp_path / "another"))
    made.finish()
    assert all(number in made for number in jobs)
    assert caplog.text.count("the compile cache lacks") == 1


def test_closing_ends_the_process_in_the_middle_of_a_compile(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_process, "STARVED_SECONDS", FOR_EVER)
    made = executables(CompileProcess(Endless(), tmp_path))
    process = started(processes)
    made.close()
    assert gone(process, 0.1)


def test_it_ends_with_a_server_that_is_killed_although_it_gets_no_core(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path\n"
        "from jaxengine.executor.compile_process import CompileProcess\n"
        "from tests.jaxengine.executor.test_compile_process import Endless\n"
        f"CompileProcess(Endless(), Path({str(tmp_path)!r})).compile('later')"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as server:
        try:
            process = started(lambda: children(server.pid))
            wait_until_begun(process)
            os.kill(process, signal.SIGSTOP)
        finally:
            server.kill()
    assert gone(process)

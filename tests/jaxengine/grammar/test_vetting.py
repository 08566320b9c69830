"""Whatever a grammar does, it does to a child of a child: it is answered for, and nothing else notices."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxengine.grammar import vetting
from jaxengine.grammar.grammar import Grammar
from jaxengine.grammar.trial import MAX_CHARACTERS
from jaxengine.grammar.vet_process import NICE
from jaxengine.grammar.vetting import Vetting, VettingError
from tests.jaxengine.grammar import hostile, vocabulary

FINE = Grammar("json_schema", '{"type": "object", "properties": {"name": {"type": "string"}}}')


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    (path / "tokenizer.json").write_text(vocabulary.tokenizer_json())
    return path


@pytest.fixture
def vet(directory: Path) -> Iterator[Vetting]:
    made = Vetting(directory, vocabulary.SIZE, [vocabulary.EOS])
    yield made
    made.close()


def helper(vet: Vetting) -> int:
    """The id of its process."""
    assert vet._helper is not None
    return vet._helper._process.pid


def children(process: int) -> list[int]:
    """Zombies included."""
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def stat(process: int) -> list[str]:
    """The fields of /proc/N/stat from the third on."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def niceness(process: int) -> int:
    """0 of a process that has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return int(stat(process)[16])
    return 0


def resident_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def wait_for(what: Callable[[], object]) -> object:
    """The first true value of `what`."""
    deadline = time.monotonic() + 600  # what runs last gets nothing while others take all cores
    while time.monotonic() < deadline:
        if value := what():
            return value
        time.sleep(0.005)
    raise AssertionError("it did not come")


def out_of_time(answer: str) -> bool:
    return "1 s of processor time" in answer or "within 2 s" in answer


def judged(vet: Vetting, grammar: Grammar) -> str:
    """The answer, once there was the time for one: on a machine that is busy with other work 2 s may be little."""
    answers: list[str] = []

    def lasting() -> bool:
        answers.append(vet.check(grammar))
        return "within 2 s" not in answers[-1]

    wait_for(lasting)
    return answers[-1]


def gone(process: int) -> bool:
    return not Path(f"/proc/{process}").exists()


def test_a_grammar_is_fine_or_refused_for_what_is_wrong_with_it(vet: Vetting) -> None:
    assert judged(vet, FINE) == ""
    assert judged(vet, Grammar("regex", "[0-9]+")) == ""
    assert '"not"' in judged(vet, Grammar("json_schema", '{"not": {}}'))
    assert "surrogate" in judged(vet, Grammar("regex", "\ud800"))
    assert judged(vet, Grammar("lark", "start: é")) != ""


def test_the_kernel_ends_a_grammar_that_takes_too_long_or_too_much(vet: Vetting) -> None:
    assert out_of_time(vet.check(hostile.SLOW))
    assert "MiB of memory" in judged(vet, hostile.HUGE)
    assert "nested too deeply" in judged(vet, hostile.DEEP)
    assert judged(vet, FINE) == ""


def test_a_slow_grammar_yields_the_cores_and_does_not_delay_others(vet: Vetting) -> None:
    vet.check(FINE)
    with ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(vet.check, hostile.slow(number)) for number in range(4)]
        wait_for(lambda: any(niceness(child) == NICE for child in children(helper(vet))))
        assert judged(vet, Grammar("regex", "an+other")) == ""
        assert not all(each.done() for each in slow)
    assert all(each.result() for each in slow)


def test_more_slow_grammars_than_there_is_room_for_are_all_answered(vet: Vetting) -> None:
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda number: vet.check(hostile.slow(number)), range(20)))
    assert all(answers)
    assert judged(vet, FINE) == ""
    wait_for(lambda: not children(helper(vet)))


def test_under_a_flood_grammars_begin_as_what_the_kernel_runs_last(vet: Vetting) -> None:
    vet.start()
    flooding = threading.Event()

    def flood(first: int) -> None:
        for number in range(first, first + 10_000):
            if flooding.is_set():
                return
            assert vet.check(hostile.slow(number))

    def young_and_nice() -> bool:
        """Of one that is so from the beginning: before it would be made so."""
        for child in children(helper(vet)):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = stat(child)
                if int(fields[11]) + int(fields[12]) <= 1 and int(fields[16]) == NICE:
                    return True
        return False

    with ThreadPoolExecutor(6) as pool:
        floods = [pool.submit(flood, each * 10_000) for each in range(6)]
        wait_for(young_and_nice)
        assert judged(vet, Grammar("regex", "hon+est")) == ""
        flooding.set()
    assert all(each.result() is None for each in floods)


def test_an_answer_is_kept_and_the_oldest_forgotten(vet: Vetting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vetting, "MAX_KEPT", 2)
    assert judged(vet, Grammar("regex", "a")) == ""
    assert judged(vet, Grammar("regex", "(")) != ""
    vet.close()
    assert judged(vet, Grammar("regex", "a")) == ""
    assert judged(vet, Grammar("regex", "(")) != ""
    for other in (Grammar("lark", "a"), Grammar("regex", "a", behind_reasoning=True)):
        with pytest.raises(VettingError):
            vet.check(other)
    again = Vetting(Path("/nowhere"), 1, [0])
    again._kept = vet._kept
    again._keep(b"new", "")
    assert len(again._kept) == 2
    assert b"new" in again._kept


def test_an_answer_that_chance_decided_is_not_kept(vet: Vetting) -> None:
    vet.start()
    tried: list[Grammar] = []
    with ThreadPoolExecutor(1) as pool:

        def answer_of_a_killed_child() -> str:
            """On a machine that is busy with other work its time may be over first: "", to try again with another."""
            tried.append(hostile.slow(len(tried)))
            answer = pool.submit(vet.check, tried[-1])
            [*_, child] = wait_for(lambda: children(helper(vet)))  # type: ignore[misc]
            os.kill(child, signal.SIGKILL)
            return "" if out_of_time(answer.result()) else answer.result()

        assert wait_for(answer_of_a_killed_child) == "it could not be compiled"
    assert out_of_time(vet.check(tried[-1]))


def test_a_helper_that_dies_is_replaced_and_the_question_asked_again(vet: Vetting) -> None:
    vet.start()
    before = helper(vet)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(vet.check, hostile.SLOW)
        wait_for(lambda: children(before))
        os.kill(before, signal.SIGKILL)
        assert out_of_time(answer.result())
    assert helper(vet) != before
    assert gone(before)


def test_a_helper_that_cannot_live_is_an_error_of_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    vet = Vetting(tmp_path, vocabulary.SIZE, [vocabulary.EOS])
    with pytest.raises(VettingError):
        vet.check(FINE)
    assert "tokenizer.json" in caplog.text
    vet.close()


def test_close_ends_the_helper_and_whoever_waits(vet: Vetting) -> None:
    vet.start()
    started = helper(vet)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(vet.check, hostile.SLOW)
        wait_for(lambda: children(started))
        vet.close()
        with pytest.raises(VettingError):
            answer.result()
    assert gone(started)


def test_the_helper_and_its_children_end_with_an_engine_that_is_killed(directory: Path) -> None:
    program = f"""
        import threading
        from pathlib import Path
        from jaxengine.grammar.grammar import Grammar
        from jaxengine.grammar.vetting import Vetting
        vet = Vetting(Path({str(directory)!r}), {vocabulary.SIZE}, [{vocabulary.EOS}])
        vet.start()
        print(vet._helper._process.pid, flush=True)
        vet.check({hostile.SLOW!r})
    """
    engine = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    started = int(engine.stdout.readline())
    (child,) = wait_for(lambda: children(started))  # type: ignore[misc]
    engine.kill()
    engine.wait()
    engine.stdout.close()
    wait_for(lambda: gone(started) and gone(child))


def test_neither_process_keeps_anything_of_a_grammar(vet: Vetting) -> None:
    grammars = [each for each in hostile.grammars() if len(each.text) < 2000]
    vet.check(FINE)

    process, memory = helper(vet), resident_bytes(helper(vet))

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd")) + len(os.listdir(f"/proc/{process}/fd"))

    before = descriptors()
    for grammar in grammars[::8]:
        assert len(vet.check(grammar)) <= MAX_CHARACTERS
    wait_for(lambda: descriptors() <= before)
    wait_for(lambda: not children(process))
    assert helper(vet) == process
    assert resident_bytes(process) - memory < 4 << 20


@pytest.mark.slow
def test_three_hundred_hostile_grammars_are_refused_or_harmless(vet: Vetting) -> None:
    vet.check(FINE)
    process, memory = helper(vet), resident_bytes(helper(vet))
    limit = 2 * os.sysconf("SC_CLK_TCK")  # of CPU time: 1 s, and the child's beginning and end
    grammars = hostile.grammars()
    assert len(grammars) >= 300
    ticks = sum(map(float, stat(process)[11:15]))
    for grammar in grammars:
        refusal = vet.check(grammar)
        assert len(refusal) <= MAX_CHARACTERS
        assert not refusal or refusal.isprintable()
        spent = sum(map(float, stat(process)[11:15]))  # its own and of its ended children
        assert spent - ticks < limit, (grammar.kind, grammar.text[:80])
        ticks = spent
    assert judged(vet, Grammar("regex", "still here")) == ""
    assert helper(vet) == process
    wait_for(lambda: not children(process))
    assert resident_bytes(process) - memory < 4 << 20


def test_many_threads_may_ask_at_once(vet: Vetting) -> None:
    questions = [Grammar("regex", f"a{number}" + "(" * (number % 2)) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda question: judged(vet, question), questions))
    assert [bool(answer) for answer in answers] == [bool(number % 2) for number in range(40)]
    assert threading.active_count() < 40


def test_a_process_that_cannot_start_is_tried_again_and_stops_no_engine(
    vet: Vetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(vetting.subprocess, "Popen", refuse)
        vet.start()
        with pytest.raises(VettingError, match="cannot start: Resource temporarily unavailable"):
            vet.check(FINE)
    assert vet.check(FINE) == ""

"""The command on servers that do what they are told: what it prints, what it keeps to itself, and how it ends."""

import asyncio
import io
import json
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.benchmark import cli, outputs
from gateway.benchmark.command_line import parse
from tests.gateway.benchmark.fake_server import Answers, FakeServer, Script, stream


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str
    server: FakeServer


async def command(
    answers: Answers,
    *options: str,
    environ: Mapping[str, str] | None = None,
    documents: Mapping[str, Any] | None = None,
) -> Done:
    """The command on a fake server; it runs in a thread, with a loop of its own."""
    out, err = io.StringIO(), io.StringIO()
    async with FakeServer(answers, documents).running() as server:
        argv = [f"--url={server.url}", *options]
        with redirect_stdout(out), redirect_stderr(err):
            code = await asyncio.to_thread(cli.run, argv, environ or {})
    return Done(code, out.getvalue(), err.getvalue(), server)


def report(done: Done) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.out)
    return found


ONE = ("-b=2", "-r=2", "-w=1", "--requests=6", "-d=3", "--output=json")


async def test_loads_are_measured_and_their_warm_up_is_not() -> None:
    done = await command(lambda number, body: stream(3), "-b", "1", "2", *ONE[1:])
    assert done.code == 0, done.err
    levels = report(done)["levels"]
    assert [level["load"]["value"] for level in levels] == [1, 2]
    assert [level["totals"]["requests"] for level in levels] == [12, 12]
    assert len(done.server.bodies) == 1 + 2 * 3 * 6, "one to find out about ignore_eos, and runs of 6"
    assert len({body["prompt"] for body in done.server.bodies}) == len(done.server.bodies)
    assert done.err.count("\n") == 4, "a line for each run"


async def test_the_key_is_sent_and_shown_nowhere(tmp_path: Path) -> None:
    files = [tmp_path / f"report.{kind}" for kind in ("md", "json", "html")]
    options = [*ONE[:-1], "--output", "md", *map(str, files)]
    done = await command(lambda number, body: stream(3), *options, environ={"API_KEY": "geheim"})
    assert done.code == 0, done.err
    assert all("authorization: Bearer geheim" in head for head in done.server.heads)
    assert "geheim" not in done.out + done.err + "".join(file.read_text() for file in files)


async def test_rejections_are_counted_apart() -> None:
    def busy(number: int, body: object) -> Script:
        return Script(429, body="busy") if number % 3 == 1 else stream(3)

    done = await command(busy, *ONE)
    [level] = report(done)["levels"]
    assert done.code == 0 and level["totals"]["rejected"] == 4 and level["failures"] == {"rejected": 4}
    assert any("4 of 12 requests failed; the first: rejected, 429 busy" in each for each in report(done)["warnings"])


async def test_a_server_that_dies_ends_the_report_with_what_was_measured() -> None:
    async def killed() -> Done:
        def dying(number: int, body: object) -> Script:
            if number == 10:
                done.append(loop.call_soon_threadsafe(server.die))
            return stream(3)

        done: list[object] = []
        loop, server = asyncio.get_running_loop(), FakeServer(dying)
        out, err = io.StringIO(), io.StringIO()
        async with server.running():
            with redirect_stdout(out), redirect_stderr(err):
                code = await asyncio.to_thread(cli.run, [f"--url={server.url}", *ONE, "-r=50"], {})
        return Done(code, out.getvalue(), err.getvalue(), server)

    done = await killed()
    assert done.code == 2
    assert "went away: Connection refused" in done.err.splitlines()[-1]
    [level] = report(done)["levels"]
    assert 0 < level["totals"]["complete"] < level["totals"]["requests"]
    assert level["failures"]["unreachable"] >= 16
    assert "went away" in report(done)["failure"]


async def test_nothing_listens() -> None:
    err = io.StringIO()
    with redirect_stderr(err):
        code = await asyncio.to_thread(cli.run, ["--url=http://127.0.0.1:9"], {})
    assert (code, err.getvalue()) == (2, "error: http://127.0.0.1:9 cannot be reached: Connection refused\n")


async def test_a_server_without_streams_or_usage_is_warned_of() -> None:
    done = await command(lambda number, body: Script(body={"choices": [{"text": "abc"}]}), *ONE)
    assert done.code == 0
    warnings = " ".join(report(done)["warnings"])
    assert "did not stream" in warnings and "told no usage" in warnings
    assert "itl_ms" not in report(done)["levels"][0]["spread"]


async def test_answers_that_are_shorter_than_asked_are_warned_of() -> None:
    done = await command(lambda number, body: stream(2), *ONE, "-d=3", "-s=50")
    warnings = " ".join(report(done)["warnings"])
    assert "answers had 2 tokens on average, not 3" in warnings
    assert "prompts had 3 tokens on average, not 50: --tokenizer-name makes them exact" in warnings


async def test_empty_answers_are_no_answers() -> None:
    done = await command(lambda number, body: Script(events=[(0, "[DONE]")]), *ONE)
    [level] = report(done)["levels"]
    assert level["totals"]["complete"] == 0 and level["failures"] == {"empty": 12} and level["spread"] == {}
    assert done.code == 2 and "no answer is complete; the first: empty, the answer holds no token" in done.err


@pytest.mark.parametrize("status", [500, 405, 307])
async def test_a_server_on_which_nothing_works_is_no_success(status: int) -> None:
    done = await command(lambda number, body: Script(status, body="no"), *ONE, "--fail-below=0")
    assert done.code == 2 and str(status) in done.err.splitlines()[-1]


async def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("kept")
    (tmp_path / "b.md").mkdir()
    files = [str(tmp_path / name) for name in ("a.json", "b.md", "c.html")]
    done = await command(lambda number, body: stream(3), *ONE[:-1], "--output", *files)
    assert done.code == 2 and "b.md cannot be written: Is a directory" in done.err and not done.server.heads
    assert (tmp_path / "a.json").read_text() == "kept" and not (tmp_path / "c.html").exists()


async def test_a_file_that_cannot_be_written_any_more_loses_no_other(tmp_path: Path) -> None:
    lost = tmp_path / "a.md"

    def spoiling(number: int, body: object) -> Script:
        lost.mkdir(exist_ok=True)
        return stream(3)

    done = await command(spoiling, *ONE[:-1], "--output", str(lost), str(tmp_path / "b.json"), "html")
    assert done.code == 2 and "a.md cannot be written" in done.err
    assert json.loads((tmp_path / "b.json").read_text())["levels"] and done.out.startswith("<!doctype html>")


def test_files_are_written_before_standard_output(tmp_path: Path) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    options = parse(["--output", "json", str(tmp_path / "a.md")], {})
    with redirect_stdout(Closed()), pytest.raises(BrokenPipeError):
        outputs.write(options, {"md": "text", "json": "{}"})
    assert (tmp_path / "a.md").read_text() == "text"


async def test_what_the_server_compiled_meanwhile_is_warned_of() -> None:
    documents = {"/v1/models": {"data": [{"id": "m"}]}}

    class Growing(dict[str, Any]):
        compiles = 0

        def get(self, path: str, default: Any = None) -> Any:
            if path == "/metrics":
                self.compiles += 3
                return f'textgen_compiles_after_warmup_total{{engine="0"}} {self.compiles}\n'
            return super().get(path, default)

    done = await command(lambda number, body: stream(3), *ONE, documents=Growing(documents))
    metrics = report(done)["facts"]["metrics"]
    assert metrics["before"] == {"compiles_after_warmup": 3} and metrics["after"] == {"compiles_after_warmup": 6}
    assert any("compiled 3 times" in each for each in report(done)["warnings"])


async def test_a_sweep_finds_the_knee_of_a_server_that_serves_a_few() -> None:
    """It answers four at once in time; whoever comes as a fifth waits longer than the SLO."""
    server = FakeServer(lambda number, body: stream(3, wait=0.02 if server.active < 4 else 0.6))
    out = io.StringIO()
    options = ["--sweep", "--slo=ttft=400ms", "--requests=8", "-r=1", "-w=0", "-d=3", "--output=json"]
    async with server.running():
        with redirect_stdout(out), redirect_stderr(io.StringIO()):
            code = await asyncio.to_thread(cli.run, [f"--url={server.url}", *options], {})
    found = json.loads(out.getvalue())
    assert code == 0 and found["knee"] == 4, [level["totals"] for level in found["levels"]]


@pytest.mark.parametrize(("least", "code"), [("1", 0), ("1e9", 1)])
async def test_the_exit_code_tells_of_a_throughput_that_is_too_low(least: str, code: int) -> None:
    done = await command(lambda number, body: stream(3), *ONE, f"--fail-below={least}")
    assert done.code == code and ("is below --fail-below" in done.err) == bool(code)
    good = await command(lambda number, body: stream(3), *ONE, f"--fail-below={least}", "--slo=ttft=10s")
    assert good.code == code and report(good)["levels"][0]["totals"]["good_share"] == 1


async def test_reports_are_compared_and_the_exit_code_tells_the_slower(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    for path, gap in ((a, 0.01), (b, 0.1)):
        done = await command(lambda number, body, gap=gap: stream(3, gap=gap), *ONE[:-1], "-r=3", f"--output={path}")
        assert done.code == 0 and not done.out
    code, out, err = compared(a, b, "--fail-below=0.9")
    assert code == 1 and "B is worse" in out and "below --fail-below 0.9: concurrency 2 0." in err
    code, out, err = compared(b, a, "--fail-below=0.9", "--output=json")
    assert code == 0 and not err
    assert all(change["low"] <= change["ratio"] <= change["high"] for change in json.loads(out)["changes"])
    assert compared(a, tmp_path / "c.json")[0] == 2


async def test_the_gate_fails_where_a_load_is_lacking_and_warns_of_other_lengths(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    for path, options in ((a, ["-b", "1", "2"]), (b, ["-b=1", "-s=11"])):
        await command(lambda number, body: stream(3), *options, *ONE[1:-1], f"--output={path}")
    code, _, err = compared(a, b, "--fail-below=0.001")
    assert code == 1 and "cannot be said to be kept: only A has concurrency 2" in err
    assert "warning: Sequence Length is 10 in A and 11 in B" in err
    assert compared(a, b)[0] == 0


def compared(a: Path, b: Path, *options: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.run(["--compare", str(a), str(b), *options], {})
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("argv", [["--runs=0"], ["--url=http://x", "--prompts=nothing"], ["-m=/none"]])
def test_a_wrong_option_is_one_line_and_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(argv, {}) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("error: ") and err.count("\n") == 1

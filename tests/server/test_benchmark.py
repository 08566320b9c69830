"""`text-generation-benchmark` as a user runs it, beside a whole server of a tiny model: over its engine's socket, and
over HTTP by each API.
"""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gateway.benchmark.cli import main
from tests.processes import PATIENCE, ROOT
from tests.server.conftest import TINY_OPTIONS
from tests.servers import Server, serving

pytestmark = pytest.mark.slow

LOAD = ("-b", "1", "4", "-r=2", "-w=1", "-s=12", "-d=9")


def run(*options: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "gateway.benchmark.cli", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=PATIENCE)


def directory(server: Server) -> str:
    return f"{server.uds_prefix}-{server.url.rpartition(':')[2]}"


def report(*options: str, **environ: str) -> dict[str, Any]:
    done = run(*options, "--output=json", **environ)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_command_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["text-generation-benchmark"] == f"{main.__module__}:{main.__name__}"


def test_an_engine_is_measured_over_its_socket_beside_its_server(server: Server, tmp_path: Path) -> None:
    before = server.gauges()
    done = run("-m", directory(server), *LOAD, "--output", "md", f"{tmp_path}/r.json", f"{tmp_path}/r.html")
    assert done.returncode == 0, done.stderr
    assert "| Prefill        | 4          |" in done.stdout and "tokens/secs" in done.stdout
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["kind"] == "engine" and not found["failure"] and not found["warnings"]
    assert [level["totals"]["cached_tokens"] for level in found["levels"]] == [0, 0]
    for level in found["levels"]:
        spread = level["spread"]
        assert 0 < spread["decode_token_ms"]["mean"] * 8 == pytest.approx(spread["decode_total_ms"]["mean"])
    after = server.gauges()
    made = sum(after[name] - before[name] for name in after if name.startswith("textgen_generated_tokens_total"))
    assert made == 3 * (1 + 4) * 9, "the engine counts what was asked of it"
    assert server.status() == 200
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("api", "path"),
    [("auto", "/v1/completions"), ("chat", "/v1/chat/completions"), ("tgi", "/generate_stream")],
)
def test_a_server_is_measured_by_each_api(server: Server, tiny_model: Path, api: str, path: str) -> None:
    found = report("--url", server.url, "--api", api, "-t", str(tiny_model), *LOAD, "--slo=e2e=60s")
    assert found["parameters"]["Api"] == path
    for level in found["levels"]:
        totals = level["totals"]
        assert totals["complete"] == 2 * 4 * level["load"]["value"] and not level["failures"]
        assert totals["good_share"] == 1 and level["spread"]["ttft_ms"]["p50"] < level["spread"]["e2e_ms"]["p50"]
        if api == "auto":
            assert totals["output_tokens"] == 9 * totals["complete"]
            assert totals["prompt_tokens"] == 12 * totals["complete"]
    assert found["knee"] == 4 and found["facts"]["server"]["info"]["max_total_tokens"]
    assert found["facts"]["metrics"]["grown"]["compiles_after_warmup"] == 0


@pytest.mark.parametrize("over", ["socket", "http"])
def test_what_was_measured_until_an_interrupt_is_reported(server: Server, over: str) -> None:
    where = ("-m", directory(server)) if over == "socket" else ("--url", server.url, "--requests=2")
    load = ("-b", "1", "2", "-r=2", "-w=0", "-d=1000", "--output=json")  # a run takes a second or longer
    command = [sys.executable, "-m", "gateway.benchmark.cli", *where, *load]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's jobs in the background ignore it
    )
    assert process.stderr is not None
    while " 1, run 2 of 2" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and err == "error: it was interrupted\n"
    found = json.loads(out)
    assert found["failure"] == "it was interrupted" and [each["load"]["value"] for each in found["levels"]] == [1]


def test_shared_prefixes_are_found_in_the_servers_cache(server: Server, tiny_model: Path) -> None:
    options = ("--prompts=shared-prefix", "--prefix-length=128", "--prefix-groups=1", "-b=1", "-r=1", "--requests=8")
    found = report("--url", server.url, "-t", str(tiny_model), *options)
    assert found["facts"]["metrics"]["grown"]["prefix_cache_hit_tokens"] > 8 * 64


def test_requests_come_at_a_rate(server: Server, tiny_model: Path) -> None:
    found = report("--url", server.url, "-t", str(tiny_model), "--rate=20", "--requests=40", "-r=1", "-w=0")
    [level] = found["levels"]
    assert level["totals"]["complete"] == 40 and level["load"] == {"kind": "rate", "value": 20}
    assert level["spread"]["ttft_ms"]["lowest"] > 0


def test_a_key_is_asked_for_and_given(tiny_model: Path, tmp_path: Path) -> None:
    with serving(tmp_path, f"--model-id={tiny_model}", *TINY_OPTIONS, env={"API_KEY": "geheim"}) as server:
        server.wait_ready()
        refused = run("--url", server.url, *LOAD)
        assert refused.returncode == 2 and "API_KEY" in refused.stderr
        done = run("--url", server.url, *LOAD, API_KEY="geheim")
        assert done.returncode == 0 and "geheim" not in done.stdout + done.stderr
        assert "| 4           | 32       |" in done.stdout
        server.stop()
    gone = run("--url", server.url)
    assert gone.returncode == 2 and gone.stderr == f"error: {server.url} cannot be reached: Connection refused\n"

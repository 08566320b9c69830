"""Starting: later starts are quick and need no network, and a start that fails says why in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.processes import PATIENCE, ROOT, is_busy
from tests.server.conftest import TINY_OPTIONS
from tests.server.test_default_model import GOLDENS
from tests.servers import READY_SECONDS, Server, serving
from tests.traps import in_a_trap

pytestmark = pytest.mark.slow

LATER_START_SECONDS = 40.0
NOBODY = "http://127.0.0.1:9"  # the discard port, on which nothing listens here
UNPLUGGED = {
    "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": NOBODY, "PIP_INDEX_URL": NOBODY, "PIP_EXTRA_INDEX_URL": "",
    "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "http_proxy": NOBODY, "https_proxy": NOBODY, "no_proxy": "127.0.0.1",
}  # fmt: skip


def test_a_later_start_needs_no_network_and_is_ready_within_forty_seconds(smollm2: Server, tmp_path: Path) -> None:
    smollm2.stop()  # two at once would share the memory and the cores
    with serving(tmp_path, env=UNPLUGGED) as server:
        took = server.wait_ready()
        print(f"a later start of the default model: {took:.1f} s")
        body = {"inputs": GOLDENS[0]["prompt"], "parameters": {"max_new_tokens": 40}}
        answer = httpx.post(server.url + "/generate", json=body, timeout=PATIENCE).json()
        assert answer == {"generated_text": GOLDENS[0]["text"]}
    assert took < LATER_START_SECONDS or is_busy()


@pytest.mark.parametrize(
    ("model", "code", "reason"),
    [
        ("/nowhere/model", 2, "'/nowhere/model': no such file or directory, and not a hub id"),
        ("not an id!", 2, "'not an id!': no such file or directory, and not a hub id"),
        ("some-body/some-model", 69, f"is not in the cache and {NOBODY} cannot be reached"),
        (str(ROOT / "tests"), 65, "no config.json and no .gguf file"),
        (str(ROOT / "LICENSE"), 2, "LICENSE' is a file; files must end in .gguf"),
    ],
    ids=["no-such-path", "not-an-id", "hub-unreachable", "no-model-inside", "not-a-model-file"],
)  # fmt: skip
def test_a_wrong_model_is_one_line_and_its_own_exit_code(tmp_path: Path, model: str, code: int, reason: str) -> None:
    command = [sys.executable, "-m", "gateway.launcher", "--port=0", "--hostname=127.0.0.1"]
    env = {**os.environ, "HF_ENDPOINT": NOBODY, "HF_HUB_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    flags = [f"--model-id={model}", f"--shard-uds-path={tmp_path}/uds"]
    done = subprocess.run([*command, *flags], cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == code
    complaints = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert len(complaints) == 1 and complaints[0].startswith("error: ") and reason in complaints[0], done.stderr


def test_a_model_beside_files_that_python_would_run_is_served_and_they_are_not_run(
    tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "model").symlink_to(tiny_model)
    with in_a_trap(tmp_path, "gateway.launcher", "--model-id=model", *TINY_OPTIONS) as server:
        server.wait_for(200, seconds=READY_SECONDS)
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        answer = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=PATIENCE).json()
        assert (answer["usage"]["completion_tokens"], answer["model"]) == (2, "model")


def test_no_device_is_one_line_and_its_own_exit_code(tiny_model: Path, tmp_path: Path) -> None:
    with serving(tmp_path, f"--model-id={tiny_model}", env={"JAX_PLATFORMS": "nowhere"}) as server:
        assert server.process.wait(PATIENCE) == os.EX_UNAVAILABLE
        log = server.log.read_text()
    assert log.count("error: JAX finds no device (JAX_PLATFORMS='nowhere')\n") == 1 and "Traceback" not in log


def test_under_json_output_every_line_of_all_processes_is_json(tiny_model: Path, tmp_path: Path) -> None:
    flags = (f"--model-id={tiny_model}", "--json-output", "--api-workers=2", *TINY_OPTIONS)
    with serving(tmp_path, *flags) as server:
        server.wait_ready()
        assert httpx.post(server.url + "/generate", json={"inputs": "a"}, timeout=PATIENCE).status_code == 200
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert all({"timestamp", "level", "message", "target", "filename", "line_number"} <= line.keys() for line in lines)
    assert {"gateway", "gateway.access"} <= {line["target"] for line in lines}

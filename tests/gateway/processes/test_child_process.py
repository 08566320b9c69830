"""What a child process is started with: only our code, and only the files and secrets that it needs."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gateway import child_process
from gateway.config.command_line import parse
from gateway.config.options import Options
from gateway.processes import engine_process, worker_spec
from gateway.processes.engine_process import EnginePlace
from gateway.processes.worker_spec import WorkerSpec
from gateway.request.shared_counters import SharedCounters
from tests.gateway.config.test_options import EXAMPLES, TOGETHER
from tests.gateway.toys import write_model
from tests.processes import PATIENCE, ROOT
from tests.servers import arguments, descendants
from tests.traps import in_a_trap, set_traps

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with nothing in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_no_process_of_a_server_runs_files_of_its_working_directory(tmp_path: Path, workers: int) -> None:
    (model := tmp_path / "model").mkdir()
    write_model(model)
    flags = (f"--api-workers={workers}", "--", f"--model-dir={model}")
    with in_a_trap(tmp_path, "tests.mock_launcher", *flags) as server:
        server.wait_for(200)
        for _ in range(12 * workers):  # new connections: each of two gets one, but in 1 of 2^23 runs
            answer = httpx.post(server.url + "/v1/chat/completions", json=CHAT, timeout=PATIENCE)
            assert answer.status_code == 200, answer.text
        family = descendants(server.process.pid)
        assert {Path(f"/proc/{pid}/cwd").readlink() for pid in family} == {server.directory, Path("/")}
        assert all("-P" in arguments(pid) for pid in family) and len(family) >= 2 * workers


@pytest.mark.slow
def test_helpers_and_http_processes_see_no_secret_and_no_more_than_they_need(tmp_path: Path) -> None:
    write_model(tmp_path)
    secrets = {"API_KEY": "hush", "HF_TOKEN": "hush", "AWS_SECRET_ACCESS_KEY": "hush"}
    flags = ("--api-workers=2", "--", f"--model-dir={tmp_path}")
    with in_a_trap(tmp_path, "tests.mock_launcher", *flags, env=secrets) as server:
        server.wait_for(200)
        headers = {"authorization": "Bearer hush"}
        for _ in range(8):
            assert httpx.post(server.url + "/v1/chat/completions", json=CHAT, headers=headers).status_code == 200
        for pid in descendants(server.process.pid):
            engine = "tests.engine_mock" in arguments(pid)
            environ, flags = Path(f"/proc/{pid}/environ").read_text(), arguments(pid)
            assert "hush" not in " ".join(flags)
            assert environ.count("hush") == (1 if engine else 0), "only the engine fetches from the hub"


def test_the_packages_of_a_checkout_are_found_and_nothing_else_that_was_relative(here: Path) -> None:
    search = child_process.environment({"PYTHONPATH": f":.:lib:/opt/lib:{ROOT}"})["PYTHONPATH"]
    assert search == f"{ROOT}:/opt/lib"


def test_installed_packages_are_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site.getsitepackages", lambda: [child_process.PACKAGES_DIRECTORY])
    assert child_process.environment({"PYTHONPATH": ":/opt/lib"})["PYTHONPATH"] == "/opt/lib"


def test_a_checkout_that_is_not_installed_runs_in_place(here: Path) -> None:
    command = [sys.executable, "-P", "-S", "-c", "import gateway.config.values; print(gateway.config.values.__file__)"]
    done = subprocess.run(command, env=child_process.environment({}), capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.strip() == str(ROOT / "gateway" / "config" / "values.py"), done.stderr


def test_a_variable_that_names_a_file_names_the_same_one_in_a_child(here: Path) -> None:
    ours = {
        "HF_HOME": "hub", "XDG_CACHE_HOME": "/cache", "SSL_CERT_FILE": "./ca.pem", "NETRC": "~/netrc",
        "HF_HUB_CACHE": "",
        "PIP_FIND_LINKS": "wheels https://a.example/w", "PIP_NO_CACHE_DIR": "1", "JAX_ENABLE_COMPILATION_CACHE": "true",
        "HOME": "/home/u", "LD_LIBRARY_PATH": "lib:/opt/lib:",
    }  # fmt: skip
    theirs = engine_process.environment(ours, "t")
    assert {name: theirs[name] for name in ours} == {
        **ours,
        "HF_HOME": f"{here}/hub", "SSL_CERT_FILE": f"{here}/ca.pem", "NETRC": f"{Path.home()}/netrc",
        "PIP_FIND_LINKS": f"{here}/wheels https://a.example/w", "LD_LIBRARY_PATH": "/opt/lib",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("huggingface_hub_cache", "hub"),
        ("weights_cache_override", "there"),
        ("tokenizer_config_path", "there/file"),
        ("ssl_certfile", "./there/file"),
        ("shard_uds_path", "run/engine"),
    ],
)
def test_a_path_among_the_options_is_absolute(here: Path, name: str, value: str) -> None:
    (here / "there").mkdir()
    (here / "there" / "file").touch()
    assert getattr(parse([f"--{name.replace('_', '-')}={value}"], {}), name) == here / value


def test_a_local_model_is_found_from_elsewhere_and_keeps_the_name_it_was_given(here: Path) -> None:
    (here / "org" / "model").mkdir(parents=True)
    command = engine_process.command(Options(model_id="org/model"), EnginePlace(Path("/s")), 1)
    assert {f"--model-id={here}/org/model", "--model-name=org/model"} <= set(command)


@pytest.mark.parametrize("model_id", ["org/other", "./missing", "/nowhere/at/all", "default"])
def test_any_other_model_id_stays_as_it_is(here: Path, model_id: str) -> None:
    (here / "default").mkdir()
    command = engine_process.command(Options(model_id=model_id), EnginePlace(Path("/s")), 1)
    assert f"--model-id={model_id}" in command and not any(part.startswith("--model-name") for part in command)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_http_worker_gets_every_option_as_the_launcher_has_it(here: Path, name: str) -> None:
    options = parse([f"--{each.replace('_', '-')}={EXAMPLES[each]}" for each in TOGETHER.get(name, (name,))], {})
    listener: Any = SimpleNamespace(fileno=lambda: 7)
    line = worker_spec.to_line(
        WorkerSpec(1, listener, (here / "engine.sock",), "token", SharedCounters(), here), options
    )
    assert worker_spec.options_from(json.loads(line)["options"]) == options
    assert line.count(b"\n") == 1 and set(json.loads(line)["options"]) == {f.name for f in dataclasses.fields(Options)}


def test_without_a_safe_path_files_of_the_working_directory_are_run(tmp_path: Path) -> None:
    """The traps work: otherwise the tests above would prove nothing."""
    sprung = set_traps(tmp_path)
    for module in ("secrets", "gateway.text.template_renderer"):
        done = subprocess.run(
            [sys.executable, "-m", module], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=PATIENCE
        )
        assert done.returncode == 99
    assert sprung.exists()

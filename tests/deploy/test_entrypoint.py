"""`deploy/entrypoint.sh` before a launcher that only says how it was started."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gateway.config.command_line import parse
from tests.processes import ROOT

ENTRYPOINT = ROOT / "deploy" / "entrypoint.sh"
LAUNCHER = f"""#!{sys.executable}
import json, os, sys
print(json.dumps([os.getpid(), sys.argv[1:], dict(os.environ)]))
sys.exit(7)
"""


@pytest.fixture
def image(tmp_path: Path) -> dict[str, str]:
    """The environment of a container whose volume is `tmp_path/data`."""
    (tmp_path / "bin").mkdir()
    launcher = tmp_path / "bin" / "text-generation-launcher"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    (tmp_path / "data").mkdir()
    return {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "HF_HOME": f"{tmp_path}/data",
        "XDG_CACHE_HOME": f"{tmp_path}/data/.cache",
        "TMPDIR": f"{tmp_path}/tmp",
        "SAGEMAKER_MODEL": f"{tmp_path}/model",
        "PORT": "80",
    }


def started(image: dict[str, str], *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The launcher's arguments and environment."""
    process = subprocess.Popen([ENTRYPOINT, *arguments], env=image, stdout=subprocess.PIPE, text=True)
    written, _ = process.communicate(timeout=60)
    pid, argv, environ = json.loads(written)
    assert pid == process.pid, "it is another process than the entry point: no signal would reach it"
    assert process.returncode == 7
    return argv, environ


def failed(image: dict[str, str], *arguments: str) -> tuple[int, str]:
    """The exit code and what was written on stderr, if the launcher was not started."""
    done = subprocess.run([ENTRYPOINT, *arguments], env=image, capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_the_launcher_gets_the_options_as_they_are(image: dict[str, str]) -> None:
    options = ["--model-id", "org/a model", "", "--json-output", "*"]
    argv, environ = started(image, *options)
    assert argv == options
    assert {name: environ[name] for name in image} == image


def test_sagemakers_variables_are_tgis(image: dict[str, str]) -> None:
    theirs = {
        "HF_MODEL_ID": "org/model",
        "HF_MODEL_REVISION": "main",
        "HF_MODEL_QUANTIZE": "eetq",
        "HF_MODEL_TRUST_REMOTE_CODE": "false",
        "SM_NUM_GPUS": "4",
        "MAX_INPUT_LENGTH": "1024",
    }
    argv, environ = started({**image, **theirs}, "serve")
    options = parse(argv, environ)
    assert (options.port, options.model_id, options.revision) == (8080, "org/model", "main")
    assert (options.quantize, options.num_shard, options.max_input_tokens) == ("eetq", 4, 1024)


def test_sagemakers_variables_count_only_if_sagemaker_starts_the_image(image: dict[str, str]) -> None:
    argv, environ = started({**image, "HF_MODEL_ID": "org/other", "SM_NUM_GPUS": "4"}, "--model-id=org/model")
    options = parse(argv, environ)
    assert (options.port, options.model_id, options.num_shard) == (80, "org/model", None)


def test_sagemaker_serves_the_endpoints_own_files(image: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    assert started(image, "serve")[1]["MODEL_ID"] == f"{tmp_path}/model"
    assert started({**image, "HF_MODEL_ID": "org/model"}, "serve")[1]["MODEL_ID"] == "org/model"


def test_sagemaker_must_name_a_model(image: dict[str, str]) -> None:
    code, said = failed(image, "serve")
    assert code == os.EX_USAGE
    assert said.startswith("error: HF_MODEL_ID must be set") and said.count("\n") == 1


def remedies(tmp_path: Path) -> tuple[str, ...]:
    return f"cannot write to {tmp_path}/data/.cache", "chown -R 10001", "docker run --user 0", "-v NAME:/data"


def make_unwritable(path: Path) -> None:
    """Root, who may run these tests, can write to every directory, but not to what is none."""
    path.parent.mkdir(exist_ok=True)
    path.touch()


def test_where_nothing_can_be_written_is_one_line_that_says_what_to_do(image: dict[str, str], tmp_path: Path) -> None:
    make_unwritable(tmp_path / "data" / ".cache")
    make_unwritable(tmp_path / "tmp")
    code, said = failed(image, "--model-id=org/model")
    assert code == os.EX_CANTCREAT
    assert said.startswith("error: ") and said.count("\n") == 1
    assert all(remedy in said for remedy in remedies(tmp_path))


def test_with_a_volume_that_cannot_be_written_it_warns_and_keeps_nothing(
    image: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_unwritable(tmp_path / "data" / ".cache")
    argv, environ = started(image, "--model-id=org/model")
    assert argv == ["--model-id=org/model"]
    elsewhere = f"{tmp_path}/tmp/text-generation"
    assert (environ["HF_HOME"], environ["XDG_CACHE_HOME"]) == (elsewhere, f"{elsewhere}/.cache")
    said = capfd.readouterr().err
    assert said.startswith("warning: ") and said.count("\n") == 1
    assert all(remedy in said for remedy in (*remedies(tmp_path), f"goes to {elsewhere}, and is lost"))


def test_models_that_lie_in_such_a_volume_are_served_from_there(image: dict[str, str], tmp_path: Path) -> None:
    make_unwritable(tmp_path / "data" / ".cache")
    (tmp_path / "data" / "hub" / "models--org--model").mkdir(parents=True)
    _, environ = started(image, "--model-id=org/model")
    assert environ["HF_HOME"] == f"{tmp_path}/data"
    assert environ["XDG_CACHE_HOME"] == f"{tmp_path}/tmp/text-generation/.cache"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_volume_of_root_is_such_a_volume(image: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        script = shutil.copy(ENTRYPOINT, directory)
        done = subprocess.run(
            [script, "--model-id=org/model"],
            user=10001,
            group=0,
            extra_groups=[],
            env={**image, "XDG_CACHE_HOME": f"{directory}/.cache", "TMPDIR": directory},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == os.EX_CANTCREAT, done.stderr
    assert "user 10001 cannot write" in done.stderr

"""`text-generation-server`: TGI's second command. Failures are one line and a non-zero exit code."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from convert.cli import main
from convert.source import open_model
from tests.tiny_drafters import write_medusa


def test_convert_writes_a_checkpoint_that_opens(tiny: Callable[[str], Path], tmp_path: Path, cache: Path) -> None:
    assert main(["convert", str(tiny("llama3")), str(tmp_path / "out"), "--dtype", "bfloat16"]) == 0
    model = open_model(str(tmp_path / "out"), cache_dir=cache)
    original = open_model(str(tiny("llama3"))).source
    assert (model.source.dtype, model.source.spec) == ("bfloat16", original.spec)
    np.testing.assert_allclose(
        model.source.read("embedding", ()).astype(np.float32), original.read("embedding", ()), rtol=2**-8
    )


def test_convert_into_an_empty_directory_is_fine(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert main(["convert", str(tiny("llama")), str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "manifest.json").exists()


def test_convert_never_overwrites(
    tiny: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("kept")
    assert main(["convert", str(tiny("llama")), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"error: output {tmp_path / 'out'} exists and is not an empty directory\n"
    assert (tmp_path / "out" / "precious").read_text() == "kept"


@pytest.mark.parametrize("command", ["convert", "quantize", "export"])
def test_a_drafter_is_not_written_as_its_base(
    command: str, tiny: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heads = write_medusa(tmp_path / "heads", str(tiny("llama")), 64, 320)
    assert main([command, str(heads), str(tmp_path / "out")]) == 2
    said = f"error: {heads} is a drafter, which cannot be written; name its base"
    assert capsys.readouterr().err.splitlines()[-1] == said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["download-weights", "/no/such"], "model '/no/such': no such file or directory, and not a hub id"),
        (["download-weights", "m", "--extension", ".bin"], "--extension must be .safetensors, got '.bin'"),
        (
            ["download-weights", "m", "--trust-remote-code"],
            "--trust-remote-code is not supported: model code is never run",
        ),
    ],
)
def test_refusals_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"error: {message}\n")


def test_bad_model_data_exits_with_65_and_names_file_and_tensor(copy_of: Callable[[str], Path]) -> None:
    directory = copy_of("llama")
    data = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(data[:-100])
    command = [sys.executable, "-m", "convert.cli", "download-weights", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 65
    assert done.stderr.startswith("error: model.safetensors: tensor 'model.norm.weight' ends at byte")
    assert done.stderr.count("\n") == 1


def test_usage_errors_exit_with_2() -> None:
    for arguments in ([], ["frobnicate"], ["convert", "a"], ["convert", "a", "b", "--dtype", "int3"]):
        with pytest.raises(SystemExit) as raised:
            main(arguments)
        assert raised.value.code == 2


def test_converting_never_imports_jax(tiny: Callable[[str], Path]) -> None:
    run = "import sys; from convert.cli import main; main(['download-weights', sys.argv[1]])"
    code = f"{run}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tiny("llama"))], check=True, timeout=60, capture_output=True)

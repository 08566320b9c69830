"""`text-generation-server`: TGI's second command. Failures are one line and a non-zero exit code."""

import os
import re
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


def test_convert_into_a_link_is_refused_before_the_work(
    tiny: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint takes the place of an empty directory, which neither a link nor a mount point can leave."""
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    assert main(["convert", str(tiny("llama")), str(tmp_path / "link")]) == 2
    said = f"error: output {tmp_path / 'link'} is a link or a mount point; name a directory in it\n"
    assert capsys.readouterr().err == said


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a command is missing; there are serve, plan, download-weights, convert, quantize, export"),
        (["frobnicate"], "'frobnicate' is no command; there are serve, "),
        (["sevre"], "'sevre' is no command (did you mean serve?); there are serve, "),
        (["convert", "a"], "the following arguments are required: OUTPUT_DIR"),
        (["convert", "a", "b", "c"], "'c' is not expected"),
        (["convert", "a", "b", "--dtyp", "x"], "--dtyp is unknown (did you mean --dtype?)"),
        (["convert", "a", "b", "--dtype"], "--dtype needs a value, bfloat16|float16|float32"),
        (
            ["convert", "a", "b", "--dtype", "bf16"],
            "argument --dtype: must be one of bfloat16, float16, float32 (did you mean bfloat16?), got 'bf16'",
        ),
        (["quantize", "a", "b", "--bits", "x"], "argument --bits: must be a whole number, got 'x'"),
        (["serve", "--uds-pth", "x"], "--uds-pth is unknown (did you mean --uds-path?)"),
        (["plan", "--device", "h100"], "--device is unknown (did you mean --devices?)"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_says_what_is_near(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {message}") and captured.err.count("\n") == 1 and not captured.out


@pytest.mark.parametrize("command", ["download-weights", "convert", "quantize", "export"])
def test_help_of_a_command_has_its_groups_and_defaults(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main([command, "--help"])
    told = capsys.readouterr().out
    titles = re.findall(r"^(\S.*):$", told, re.MULTILINE)
    outputs = [] if command == "download-weights" else ["Output"]
    assert (done.value.code, titles) == (0, ["options", "Model", *outputs, "Taken from TGI"])
    assert command != "quantize" or "of a weight [4]" in told


def test_converting_never_imports_jax(tiny: Callable[[str], Path]) -> None:
    run = "import sys; from convert.cli import main; main(['download-weights', sys.argv[1]])"
    code = f"{run}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tiny("llama"))], check=True, timeout=60, capture_output=True)


def test_an_interrupted_command_ends_at_once_behind_its_line() -> None:
    """Without the interpreter's own end, in which JAX crashes where it was computing."""
    program = """
import atexit, sys
from convert import cli
def _run(options):
    raise KeyboardInterrupt
cli._run = _run
atexit.register(print, "the interpreter's own end")
sys.exit(cli.main())
"""
    command = [sys.executable, "-c", program, "convert", "model", "output"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def test_a_directory_whose_name_is_no_text_is_refused_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / os.fsdecode(b"mod\xe8le")
    directory.mkdir()
    assert main(["download-weights", str(directory)]) == 2
    assert capsys.readouterr().err == f"error: {str(directory)!r} is not UTF-8: rename it\n"

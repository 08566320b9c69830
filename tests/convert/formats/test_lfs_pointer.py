"""What `git clone` leaves where Git LFS is not installed is named, whichever file it stands for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from convert.errors import CheckpointError
from convert.source import open_model

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "pytorch_model.bin"])
def test_a_pointer_in_a_checkpoint_is_told_from_a_damaged_file(copy_of: Callable[[str], Path], name: str) -> None:
    directory = copy_of("llama")
    if name == "pytorch_model.bin":
        (directory / "model.safetensors").unlink()
    (directory / name).write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=f"{name}: is a pointer of Git LFS, .* git lfs pull"):
        open_model(str(directory))


def test_so_is_one_that_stands_for_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=r"^model\.gguf: is a pointer of Git LFS, .* git lfs pull"):
        open_model(str(tmp_path / "model.gguf"))

"""An adapter's files may be written anew at any time: it is read whole, as it was or as it is, or refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import convert.adapters.adapter as adapters
from convert.errors import CheckpointError

WEIGHTS = {
    f"base_model.model.layers.0.q_proj.lora_{name}.weight": np.full(shape, number, np.float32)
    for number, (name, shape) in enumerate({"A": (4, 64), "B": (64, 4)}.items(), 1)
}
CONFIG = '{"peft_type": "LORA", "r": 4}'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / adapters.CONFIG).write_text(CONFIG)
    return tmp_path


@pytest.mark.parametrize("name", [*adapters.WEIGHTS])
def test_a_file_that_is_written_anew_changes_nothing_of_what_was_opened(directory: Path, name: str) -> None:
    """A mapped file that is cut would end the process."""
    path = directory / name
    if name.endswith(".bin"):
        torch.save({tensor: torch.from_numpy(values) for tensor, values in WEIGHTS.items()}, path)
    else:
        save_file(WEIGHTS, path)
    opened = adapters._tensors(directory)
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    for tensor, values in WEIGHTS.items():
        np.testing.assert_array_equal(opened.read(tensor, values.shape, ()), values)


def test_an_adapter_that_is_written_while_it_is_read_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it could be the old one's."""
    save_file(WEIGHTS, directory / "adapter_model.safetensors")
    scale = adapters._scale

    def write_meanwhile(*arguments: Any) -> float:
        (directory / adapters.CONFIG).write_text(CONFIG)
        return scale(*arguments)

    monkeypatch.setattr(adapters, "_scale", write_meanwhile)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        adapters.open_adapter(directory)

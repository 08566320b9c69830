"""No tensor is lost where two have one name."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from convert.errors import CheckpointError
from convert.formats.safetensors import SafetensorsFile
from convert.mapping.renamed_tensors import RenamedTensors

RENAMES = ((r"^language_model\.", ""),)
ONES = np.ones(3, np.float32)


def test_two_that_differ_are_refused_and_copies_are_one(tmp_path: Path) -> None:
    """Some tools write the text part under its old names beside its new ones."""
    path = tmp_path / "x.safetensors"
    save_file({"language_model.a": ONES, "a": ONES.copy()}, path)
    assert list(RenamedTensors(SafetensorsFile(path), RENAMES)) == ["a"]
    save_file({"language_model.a": ONES, "a": 2 * ONES}, path)
    with pytest.raises(CheckpointError, match=r"x\.safetensors: tensors '.*a' and '.*a' are one, and differ"):
        RenamedTensors(SafetensorsFile(path), RENAMES)

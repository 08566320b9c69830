"""A checkpoint that sees is the same under the names of every time: those on the hub, and those of later releases."""

import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from convert.source import open_model
from jaxengine.architecture.parameters import parameter_table
from tests.tiny_vision import write_vision

# As transformers has written them from 4.52 on.
LATER = (
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^language_model\.model\.", "model.language_model."),
    (r"^vision_tower\.(vision_model\.)?", "model.vision_tower."),
    (r"^(multi_modal_projector|image_newline)", r"model.\1"),
)
LATER_QWEN = ((r"^model\.", "model.language_model."), (r"^visual\.", "model.visual."))
OTHERS = {
    "gemma3": LATER,
    "internvl": LATER,
    "llava_next": LATER,
    "mistral3": LATER,
    "paligemma": LATER,
    "qwen2_5_vl": LATER_QWEN,
}


@pytest.mark.parametrize("name", OTHERS)
def test_tensors_under_other_names_are_the_same_parameters(name: str, tmp_path: Path) -> None:
    directory = write_vision(tmp_path, name)
    source = open_model(str(directory)).source
    expected = {parameter: source.read(parameter, ()) for parameter in parameter_table(source.spec)}
    _rename(directory / "model.safetensors", OTHERS[name])
    renamed = open_model(str(directory)).source
    assert renamed.spec == source.spec
    for parameter, values in expected.items():
        np.testing.assert_array_equal(renamed.read(parameter, ()), values)


def _rename(file: Path, renames: tuple[tuple[str, str], ...]) -> None:
    tensors = load_file(file)
    names = {name: name for name in tensors}
    for pattern, replacement in renames:
        names = {name: re.sub(pattern, replacement, each) for name, each in names.items()}
    assert any(name != each for name, each in names.items())
    save_file({each: tensors[name].clone() for name, each in names.items()}, file, metadata={"format": "pt"})

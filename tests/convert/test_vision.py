"""Checkpoints of models that see: read whole, written in our layout and read back, known from less than their files."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from convert.checkpoint import write_checkpoint
from convert.errors import CheckpointError
from convert.outline import CONFIGURATION, open_outline
from convert.source import open_model
from convert.tokenizer.tokenizer import PICTURE_FILES
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import parameter_table
from tests.tiny_vision import SEEN, write_vision

pytestmark = pytest.mark.slow

NAMES = [name for name in SEEN if name not in ("llava_siglip",)]


@pytest.fixture(scope="module", params=NAMES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision(tmp_path_factory.mktemp("vision"), request.param)


def test_a_round_trip_through_our_layout_keeps_every_parameter(checkpoint: Path, tmp_path: Path) -> None:
    model = open_model(str(checkpoint))
    write_checkpoint(model.source, model.directory, tmp_path / "ours")
    back = open_model(str(tmp_path / "ours"), cache_dir=tmp_path / "cache")
    assert back.source.spec == model.source.spec and back.source.spec.vision is not None
    for name in parameter_table(model.source.spec):
        np.testing.assert_array_equal(back.source.read(name, ()), model.source.read(name, ()))
    files = [name for name in PICTURE_FILES if (checkpoint / name).is_file()]
    assert files and all((back.directory / name).read_bytes() == (checkpoint / name).read_bytes() for name in files)


def test_its_configuration_alone_tells_how_it_sees(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copyfile(checkpoint / "config.json", tmp_path / "config.json")
    made, there = open_outline(str(tmp_path)), open_model(str(checkpoint)).source.spec
    assert made.known_from == CONFIGURATION
    assert made.model.source.spec.vision == there.vision
    assert _of_tower(made.model.source.spec) == _of_tower(there)


def test_a_specification_that_sees_is_kept_as_json(checkpoint: Path) -> None:
    spec = open_model(str(checkpoint)).source.spec
    assert ModelSpec.from_json(spec.to_json()) == spec


def test_a_tensor_of_the_tower_without_a_place_is_named(tmp_path: Path) -> None:
    directory = write_vision(tmp_path, "llava")
    tensors = load_file(directory / "model.safetensors")
    tensors["vision_tower.vision_model.adapter.weight"] = tensors["multi_modal_projector.linear_1.bias"].clone()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"no place for tensor 'vision_tower.adapter.weight'"):
        open_model(str(directory))


def test_an_unknown_tower_is_named(tmp_path: Path) -> None:
    directory = write_vision(tmp_path, "llava")
    config = (directory / "config.json").read_text().replace("clip_vision_model", "dinov2")
    (directory / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=r"supported towers are clip_vision_model, .*, got 'dinov2'"):
        open_model(str(directory))


def _of_tower(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    return {name: each.shape for name, each in parameter_table(spec).items() if name.startswith("vision.")}

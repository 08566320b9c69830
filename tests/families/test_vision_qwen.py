"""Qwen's towers on pictures of many shapes in one call: windows cut at the edges, positions stretched, deepstack."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from convert.source import open_model
from jaxengine.architecture.parameters import parameter_table
from jaxengine.architecture.picture import PictureShape
from jaxengine.model.vision.packing import EncodeShape, encode_shapes, needed
from tests.families.vision_rows import TOLERANCE, Encoded
from tests.tiny_quantized import FORMATS, save_arrays
from tests.tiny_vision import turn_experts, write_vision
from tests.vision_references import Reference, Seen

GRIDS = ((2, 2), (2, 12), (10, 6), (14, 18), (4, 4), (26, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def test_pictures_of_any_shape_have_the_rows_of_transformers(name: str, tmp_path: Path) -> None:
    directory = write_vision(tmp_path, name)
    reference, encoded = Reference(directory, name), Encoded(directory)
    random, width = np.random.default_rng(0), encoded.vision.patch_values
    pictures = [
        Seen(PictureShape((grid,), 1, 1), random.normal(size=(grid[0] * grid[1], width)).astype(np.float32))
        for grid in GRIDS
    ]
    with torch.no_grad():
        patches = torch.from_numpy(np.concatenate([picture.patches for picture in pictures]))
        found = reference.model.model.visual(patches, grid_thw=torch.tensor([[1, *grid] for grid in GRIDS]))
    expected = torch.cat([found.pooler_output, *getattr(found, "deepstack_features", [])], dim=-1).numpy()
    need = needed(encoded.vision, [picture.shape for picture in pictures])
    largest = EncodeShape(need.patches + 64, need.segments, need.rows, need.windows)
    rows = np.concatenate(encoded.rows(pictures, encode_shapes(encoded.vision, largest)[-1]))
    np.testing.assert_allclose(rows, expected, atol=TOLERANCE, rtol=0)


def test_experts_are_read_as_the_hub_has_them_and_as_transformers_saves_them(tmp_path: Path) -> None:
    directory = write_vision(tmp_path, "qwen3_vl_moe")
    on_the_hub = _experts(directory)
    turn_experts(directory / "model.safetensors")
    saved = _experts(directory)
    assert [*saved] == [*on_the_hub] == ["layers.1.experts_gate_up", "layers.1.experts_down"]
    for name, expected in on_the_hub.items():
        np.testing.assert_array_equal(saved[name], expected)


@pytest.mark.slow
def test_experts_are_read_where_each_is_a_module_as_quantised_checkpoints_have_them(tmp_path: Path) -> None:
    """Tools that quantise modules take the experts apart, under the names of Qwen3-MoE."""
    directory = write_vision(tmp_path, "qwen3_vl_moe")
    joint = _experts(directory)
    quantise_experts(directory)
    apart, source = _experts(directory), open_model(str(directory)).source
    for name, floats in joint.items():
        stored = source.stored(name)
        assert stored is not None and stored.format.name == "int8"
        np.testing.assert_allclose(apart[name], floats, atol=np.abs(floats).max() / 127)
        assert (apart[name] != floats).any()


def quantise_experts(directory: Path) -> None:
    file, config = directory / "model.safetensors", json.loads((directory / "config.json").read_text())
    made: dict[str, np.ndarray] = {}
    for name, tensor in load_file(file).items():
        experts, _, kind = name.rpartition(".")
        if not experts.endswith(".experts"):
            made[name] = tensor
            continue
        parts = ["gate_proj", "up_proj"] if kind == "gate_up_proj" else [kind]
        for number, turned in enumerate(tensor):  # [in, out]
            for part, weight in zip(parts, np.split(turned.T, len(parts)), strict=True):
                written = FORMATS["ct_int8"].write(weight).tensors
                made |= {f"{experts}.{number}.{part}{suffix}": each for suffix, each in written.items()}
    save_arrays(made, file)
    config["quantization_config"] = FORMATS["ct_int8"].config
    (directory / "config.json").write_text(json.dumps(config))


def _experts(directory: Path) -> dict[str, np.ndarray]:
    source = open_model(str(directory)).source
    shapes = {name: each.shape for name, each in parameter_table(source.spec).items() if "experts_" in name}
    return {name: source.read(name, tuple(map(slice, shape))).copy() for name, shape in shapes.items()}  # not mapped

"""Files of Qwen3-Next and Qwen 3.5: value heads in turn, in floats or in blocks, and the first files' layout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from convert.compose import compose
from convert.config.config import Config
from convert.errors import CheckpointError
from convert.formats.gguf import GgufFile
from convert.formats.shards import open_tensors
from convert.llama_cpp.model import open_gguf
from convert.mapping.composition import ComposedSource
from jaxengine.architecture.parameters import parameter_table
from tests.convert.quantized.test_models import multiplied_out
from tests.convert.tiny_gguf import write_tiny_gguf
from tests.families.zoo import ZOO
from tests.tiny import write_model

Q8_0 = gguf.GGMLQuantizationType.Q8_0
PROJECTIONS = {"linear_in", "linear_gate", "linear_rates", "linear_out"}
WIDE = {
    "linear_value_head_dim": 32,
    "shared_expert_intermediate_size": 64,
}  # inputs of a block, which lie together in a head


def opened(directory: Path, name: str, fields: dict[str, Any], **options: Any) -> tuple[ComposedSource, ComposedSource]:
    """The GGUF's parameters and the original's."""
    checkpoint = write_model(directory / name, ZOO[name] | fields)
    original = compose(Config.load(checkpoint / "config.json"), open_tensors(checkpoint))
    return open_gguf(GgufFile(write_tiny_gguf(checkpoint, directory / "x.gguf", **options))), original


@pytest.mark.parametrize(("name", "fields"), [("qwen3_5", {}), ("qwen3_5", WIDE), ("qwen3_5_moe", WIDE)])
def test_slices_of_value_heads_in_turn_equal_the_whole(name: str, fields: dict[str, Any], tmp_path: Path) -> None:
    source, _ = opened(tmp_path, name, fields, kind=Q8_0)
    for parameter, described in parameter_table(source.spec).items():
        whole = source.read(parameter, ())
        for axis, extent in enumerate(described.shape):
            cut = (*[slice(None)] * axis, slice(extent // 2, extent))
            np.testing.assert_array_equal(source.read(parameter, cut), whole[cut], parameter)


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_blocks_stay_as_they_are_whatever_the_order_of_value_heads(name: str, kind: str, tmp_path: Path) -> None:
    fields = WIDE | ({"mlp_only_layers": []} if name == "qwen3_next" else {})
    source, _ = opened(tmp_path, name, fields, kind=gguf.GGMLQuantizationType[kind])
    table = parameter_table(source.spec)
    for parameter in (f"layers.0.{each}" for each in sorted(PROJECTIONS)):
        stored, shape = source.stored(parameter), table[parameter].shape
        assert stored is not None, parameter
        whole = source.read(parameter, ())
        np.testing.assert_allclose(multiplied_out(stored, shape, table[parameter].inputs), whole, rtol=0, atol=1e-6)


def test_blocks_of_several_heads_in_turn_are_read_in_floats(tmp_path: Path) -> None:
    """A block's inputs share a scale, and here they lie apart."""
    source, original = opened(tmp_path, "qwen3_5", {}, kind=Q8_0)
    assert source.stored("layers.0.linear_out") is None and source.stored("layers.0.linear_gate") is not None
    expected = original.read("layers.0.linear_out", ())
    np.testing.assert_allclose(source.read("layers.0.linear_out", ()), expected, rtol=0, atol=0.02)


def test_a_device_s_codes_and_scales_are_those_of_its_heads(tmp_path: Path) -> None:
    source, _ = opened(tmp_path, "qwen3_5", WIDE, kind=Q8_0)
    stored = source.stored("layers.0.linear_out")
    assert stored is not None
    codes, scales = stored.read("values", ()), stored.read("scales", ())
    assert codes.shape == (64, 4, 2, 32) and scales.shape == (64, 8) and len(np.unique(scales[0])) > 1
    np.testing.assert_array_equal(stored.read("values", (slice(None), slice(1, 2))), codes[:, 1:2])
    np.testing.assert_array_equal(stored.read("scales", (slice(None), slice(2, 4))), scales[:, 2:4])


def test_the_first_files_of_qwen3_next_have_one_tensor_for_gates_too(tmp_path: Path) -> None:
    fields = {"mlp_only_layers": []}
    early, original = opened(tmp_path, "qwen3_next", fields, early=True)
    assert "blk.0.ssm_in.weight" in GgufFile(tmp_path / "x.gguf").tensors
    for parameter in parameter_table(original.spec):
        np.testing.assert_allclose(early.read(parameter, ()), original.read(parameter, ()), rtol=0, atol=2e-7)


def test_layers_that_draft_are_not_read(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    layers = {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    further = {f"blk.4.{name}.weight": np.ones(64, np.float32) for name in ("attn_norm", "nextn.enorm")}
    path = write_tiny_gguf(zoo("qwen3_5"), tmp_path / "x.gguf", metadata=layers, extra=further)
    assert open_gguf(GgufFile(path)).spec.num_layers == 4


def test_layers_of_a_file_that_lists_them_are_those(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    listed: dict[str, Any] = {"qwen35.attention.recurrent_layers": [True, True, True, False]}
    own = {"qwen35.full_attention_interval": 2}
    path = write_tiny_gguf(zoo("qwen3_5"), tmp_path / "x.gguf", metadata=own | listed)
    kinds = open_gguf(GgufFile(path)).spec.kinds
    assert [kind.mixer for kind in kinds] == ["recurrence"] * 3 + ["attention"]


def test_sizes_that_do_not_fit_are_refused(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_tiny_gguf(zoo("qwen3_5"), tmp_path / "x.gguf", metadata={"qwen35.ssm.inner_size": 65})
    with pytest.raises(CheckpointError, match=r"ssm.inner_size must be a multiple of ssm.time_step_rank 8, got '65'"):
        open_gguf(GgufFile(path))

"""GGUF files of models whose layers differ: what is quantised stays so, what is not read, what is refused."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from convert.errors import CheckpointError
from convert.formats.gguf import GgufFile
from convert.llama_cpp.model import open_gguf
from convert.mapping.composition import ComposedSource
from jaxengine.architecture.parameters import parameter_table
from tests.convert.quantized.test_models import multiplied_out
from tests.convert.tiny_gguf import write_tiny_gguf
from tests.families.zoo import ZOO
from tests.tiny import write_model

# Sizes that blocks of 32 divide.
WHOLE: dict[str, dict[str, Any]] = {
    "gemma4_moe": {},
    "gemma4_e2b": {"hidden_size_per_layer_input": 32},
    "lfm2": {},
    "lfm2_moe": {},
    "granite_hybrid": {"shared_intermediate_size": 96},
    "granite_hybrid_moe": {"shared_intermediate_size": 64},
    "nemotron_h": {
        "layers_block_type": ["mamba", "moe", "attention"],
        "moe_shared_expert_intermediate_size": 64,
        "head_dim": 32,
    },
    "falcon_h1": {},
}
IN_BLOCKS = {
    "gemma4_moe": ("0.experts_gate_up", "1.experts_down", "0.qkv", "2.qkv", "0.gate_up"),
    "gemma4_e2b": ("0.input_gate", "0.input_out", "4.q", "5.down"),
    "lfm2": ("0.short_in", "0.short_out", "1.qkv", "2.down"),
    "lfm2_moe": ("1.experts_gate_up", "2.experts_down", "0.gate_up"),
    "granite_hybrid": ("0.mamba_in", "0.mamba_shared", "0.mamba_rates", "0.mamba_out", "0.gate_up", "1.down"),
    "granite_hybrid_moe": ("0.experts_gate_up", "1.experts_down", "1.shared_gate_up", "1.mamba_in"),
    "nemotron_h": ("0.mamba_in", "1.experts_gate_up", "1.experts_down", "1.shared_gate_up", "2.qkv"),
    "falcon_h1": ("0.mamba_in", "0.mamba_out", "0.qkv", "1.gate_up"),
}


def written(name: str, directory: Path, changes: dict[str, Any] | None = None, **options: Any) -> Path:
    checkpoint = write_model(directory / "model", ZOO[name] | (changes or {}))
    return write_tiny_gguf(checkpoint, directory / "x.gguf", **options)


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_quantised_matrices_stay_in_blocks(name: str, tmp_path: Path) -> None:
    path = written(name, tmp_path, WHOLE[name], kind=gguf.GGMLQuantizationType.Q8_0)
    source = open_gguf(GgufFile(path))
    for each in (*(f"layers.{parameter}" for parameter in IN_BLOCKS[name]), "embedding"):
        stays(source, each)


def stays(source: ComposedSource, name: str) -> None:
    described, stored = parameter_table(source.spec)[name], source.stored(name)
    assert stored is not None, name
    restored = multiplied_out(stored, described.shape, described.inputs)
    np.testing.assert_allclose(restored, source.read(name, ()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["gemma4_moe", "granite_hybrid", "nemotron_h", "lfm2_moe"])
def test_slices_equal_the_whole(name: str, tmp_path: Path) -> None:
    source = open_gguf(GgufFile(written(name, tmp_path, WHOLE[name], kind=gguf.GGMLQuantizationType.Q8_0)))
    for parameter, described in parameter_table(source.spec).items():
        whole = source.read(parameter, ())
        for axis, extent in enumerate(described.shape):
            cut = (*[slice(None)] * axis, slice(extent // 2, extent))
            np.testing.assert_array_equal(source.read(parameter, cut), whole[cut])


def test_keys_of_layers_that_attend_to_another_s_are_not_read(tmp_path: Path) -> None:
    """Published checkpoints of Gemma 4 E2B and E4B have them."""
    shapes = {"attn_k.weight": (8, 64), "attn_v.weight": (8, 64), "attn_k_norm.weight": (8,)}
    extra = {f"blk.4.{name}": np.ones(shape, np.float32) for name, shape in shapes.items()}
    assert open_gguf(GgufFile(written("gemma4_e2b", tmp_path, extra=extra))).spec.kinds[4].reads == 2


def test_gate_and_up_of_gemma_4_s_experts_may_be_apart(tmp_path: Path) -> None:
    path = written("gemma4_moe", tmp_path)
    expected = open_gguf(GgufFile(path)).read("layers.1.experts_gate_up", ())  # [expert, 2, out, in]
    file = GgufFile(path)
    apart = gguf.GGUFWriter(tmp_path / "apart.gguf", "gemma4")
    for key, value in file.metadata.items():
        if key.startswith("gemma4."):
            add = {bool: apart.add_bool, int: apart.add_uint32, float: apart.add_float32}
            add.get(type(value), apart.add_array)(key, value)
    for name, tensor in file.tensors.items():
        values = tensor.whole().reshape(tensor.shape)
        if name.endswith("ffn_gate_up_exps.weight"):
            for part, half in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
                apart.add_tensor(name.replace("gate_up", part), np.ascontiguousarray(half))
        else:
            apart.add_tensor(name, values)
    apart.write_header_to_file()
    apart.write_kv_data_to_file()
    apart.write_tensors_to_file()
    apart.close()
    source = open_gguf(GgufFile(tmp_path / "apart.gguf"))
    np.testing.assert_array_equal(source.read("layers.1.experts_gate_up", ()), expected)


@pytest.mark.parametrize("drafting", [1, 2**30])
def test_a_nemotron_s_blocks_that_draft_are_not_read(drafting: int, tmp_path: Path) -> None:
    """As many as the file says: what that costs depends on those that it has."""
    key = "nemotron_h_moe."
    fields = {"block_count": 3 + drafting, "nextn_predict_layers": drafting, "attention.head_count_kv": [0, 0, 2, 2]}
    metadata = {key + name: value for name, value in (fields | {"feed_forward_length": [0, 32, 0, 32]}).items()}
    extra = {f"blk.3.{name}.weight": np.ones(64, np.float32) for name in ("attn_norm", "nextn.enorm")}
    path = written("nemotron_h", tmp_path, WHOLE["nemotron_h"], metadata=metadata, extra=extra)
    assert open_gguf(GgufFile(path)).spec.num_layers == 3


@pytest.mark.parametrize(
    ("name", "metadata", "problem"),
    [
        ("gemma4_text", {"gemma4.attention.sliding_window_pattern": 2}, "must say true or false of each of 5 layers"),
        ("gemma4_text", {"gemma4.attention.head_count_kv": [4, 2, 1, 4, 1]}, "the same for all layers of type sliding"),
        ("gemma4_text", {"gemma4.attention.head_count_kv": [4, 4]}, "must be a number for each of 5 layers"),
        ("gemma4_text", {"gemma4.block_count": 2**30}, "leaves 1073741824 layers"),
        ("gemma4_e2b", {"gemma4.feed_forward_length": [96, 96, 96, 192, 192, 192, 192, 192]}, "one width of 4 layers"),
        ("gemma4_e2b", {"gemma4.attention.shared_kv_layers": 8}, "shared_kv_layers must be less than the 8 layers"),
        ("lfm2", {"lfm2.attention.causal": False}, "reads in both directions"),
        ("lfm2", {"lfm2.attention.head_count_kv": ["a", "b", "c"]}, "must be a number for each of 3 layers"),
        ("granite_hybrid", {"granitehybrid.ssm.inner_size": 100}, "must be a multiple of embedding_length 64"),
        ("nemotron_h", {"nemotron_h_moe.moe_latent_size": 16}, "moe_latent_size other than None is not supported"),
        ("nemotron_h", {"nemotron_h_moe.expert_group_used_count": 0}, "topk_group must be a positive integer"),
    ],
)
def test_metadata_that_does_not_fit_is_refused_by_name(
    name: str, metadata: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    path = written(name, tmp_path, WHOLE.get(name), metadata=metadata)
    with pytest.raises(CheckpointError, match=problem):
        open_gguf(GgufFile(path))


def test_frequencies_that_turn_neither_whole_nor_not_at_all_are_refused(tmp_path: Path) -> None:
    path = written("gemma4_text", tmp_path)
    data = path.read_bytes()
    still = np.float32(1e30).tobytes()
    assert data.count(still) == 4
    path.write_bytes(data.replace(still, np.float32(2).tobytes()))
    with pytest.raises(CheckpointError, match="must be ones, then 1e\\+30 of pairs that stand still"):
        open_gguf(GgufFile(path))

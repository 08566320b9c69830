"""Files of models with latent attention: one matrix for keys and values of latents or two, and what files omit."""

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
from convert.llama_cpp import latents
from convert.llama_cpp.model import open_gguf
from convert.mapping.composition import ComposedSource
from jaxengine.architecture.parameters import parameter_table
from tests.convert.quantized.test_models import multiplied_out
from tests.convert.tiny_gguf import write_tiny_gguf
from tests.families.zoo import ZOO
from tests.tiny import write_model

Q8_0 = gguf.GGMLQuantizationType.Q8_0
BLOCKS = {"kv_lora_rank": 32, "q_lora_rank": 64, "qk_nope_head_dim": 32, "v_head_dim": 32}
SINGLE = {"n_group": 1, "topk_group": 1}  # groups of experts


def opened(directory: Path, name: str, fields: dict[str, Any], **options: Any) -> tuple[ComposedSource, ComposedSource]:
    """The GGUF's parameters and the original's."""
    checkpoint = write_model(directory / name, ZOO[name] | {"attention_bias": False} | fields)
    original = compose(Config.load(checkpoint / "config.json"), open_tensors(checkpoint))
    return open_gguf(GgufFile(write_tiny_gguf(checkpoint, directory / "x.gguf", **options))), original


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
def test_older_files_have_one_matrix_for_keys_and_values(name: str, tmp_path: Path) -> None:
    early, original = opened(tmp_path, name, SINGLE, early=True)
    assert "blk.0.attn_kv_b.weight" in GgufFile(tmp_path / "x.gguf").tensors
    assert early.spec.attention == original.spec.attention and early.spec.experts == original.spec.experts
    for parameter in parameter_table(original.spec):
        np.testing.assert_array_equal(early.read(parameter, ()), original.read(parameter, ()), parameter)


@pytest.mark.parametrize("early", [True, False])
def test_blocks_stay_as_they_are_but_those_of_keys_and_values(early: bool, tmp_path: Path) -> None:
    source, original = opened(tmp_path, "deepseek_v3", SINGLE | BLOCKS, kind=Q8_0, early=early)
    table = parameter_table(source.spec)
    for parameter in (f"layers.1.{each}" for each in ("q_a", "q", "kv_a", "out", "experts_gate_up", "experts_down")):
        stored, shape = source.stored(parameter), table[parameter].shape
        assert stored is not None, parameter
        whole = source.read(parameter, ())
        np.testing.assert_allclose(multiplied_out(stored, shape, table[parameter].inputs), whole, rtol=0, atol=1e-6)
    for parameter in ("layers.1.k_up", "layers.1.v_up"):
        expected = original.read(parameter, ())
        np.testing.assert_allclose(source.read(parameter, ()), expected, rtol=0, atol=0.02)


def test_slices_equal_the_whole(tmp_path: Path) -> None:
    source, _ = opened(tmp_path, "deepseek_v3", BLOCKS, kind=Q8_0)
    for parameter, described in parameter_table(source.spec).items():
        whole = source.read(parameter, ())
        for axis, extent in enumerate(described.shape):
            cut = (*[slice(None)] * axis, slice(extent // 2, extent))
            np.testing.assert_array_equal(source.read(parameter, cut), whole[cut], parameter)


@pytest.mark.parametrize(("known", "groups"), [({}, (1, 1)), ({8: (4, 2)}, (4, 2))])
def test_groups_of_experts_that_a_file_omits_are_told_by_their_number(
    known: dict[int, tuple[int, int]], groups: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latents, "GROUPS", known)
    source, _ = opened(tmp_path, "deepseek_v3", {}, early=True)
    experts = source.spec.experts
    assert experts is not None and (experts.groups, experts.used_groups) == groups


def test_what_a_file_omits_is_not_done(tmp_path: Path) -> None:
    """The checkpoint's silence would mean otherwise."""
    fields = {"norm_topk_prob": False, "routed_scaling_factor": 1.0}
    source, original = opened(tmp_path, "deepseek_v3", fields, metadata={"deepseek2.expert_shared_count": 2})
    path = tmp_path / "x.gguf"
    assert "deepseek2.expert_weights_norm" not in GgufFile(path).metadata
    assert source.spec.experts == original.spec.experts


def test_layers_that_draft_are_not_read(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    layers = {"deepseek2.block_count": 4, "deepseek2.nextn_predict_layers": 1}
    further = {f"blk.3.{name}.weight": np.ones(64, np.float32) for name in ("attn_norm", "nextn.enorm")}
    path = write_tiny_gguf(zoo("glm4_moe_lite"), tmp_path / "x.gguf", metadata=layers, extra=further)
    assert open_gguf(GgufFile(path)).spec.num_layers == 3


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"expert_gating_func": 3}, r"expert_gating_func must be 1 \(softmax\) or 2 \(sigmoid\), got '3'"),
        ({"attention.temperature_scale": 0.1}, "attention.temperature_scale is not supported"),
        ({"attention.key_length_mla": 12}, "attention.key_length_mla must be above rope.dimension_count 12, got '12'"),
        ({"expert_gating_func": 1}, "norm_topk_prob other than False is not supported"),
    ],
)
def test_what_no_model_here_has_is_refused(
    metadata: dict[str, Any], message: str, zoo: Callable[[str], Path], tmp_path: Path
) -> None:
    own = {f"deepseek2.{key}": value for key, value in metadata.items()}
    path = write_tiny_gguf(zoo("glm4_moe_lite"), tmp_path / "x.gguf", metadata=own)
    with pytest.raises(CheckpointError, match=message):
        open_gguf(GgufFile(path))

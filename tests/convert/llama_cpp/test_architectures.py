"""A GGUF of each architecture gives the specification and the parameters of the checkpoint it was made from."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from convert.compose import compose
from convert.config.config import Config
from convert.formats.gguf import GgufFile
from convert.formats.shards import open_tensors
from convert.llama_cpp import architectures
from convert.llama_cpp.architectures import ARCHITECTURES
from convert.llama_cpp.model import GgufTensors, open_gguf
from convert.mapping.composition import ComposedSource
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import parameter_table
from jaxengine.model.rope import attention_factor
from tests.convert import tiny_gguf
from tests.convert.quantized.test_models import multiplied_out
from tests.convert.tiny_gguf import longrope_factors, write_tiny_gguf
from tests.families.seq2seq import SEQ2SEQ, write_seq2seq
from tests.families.zoo import BAICHUAN, FULL, OLMO3_ROPES, YARN, ZOO, write_zoo
from tests.tiny import write_model

# Changes of the zoo's configurations for what a GGUF file cannot say: Gemma's scale (only 27B models have their own),
# activations and their limits, layers without experts, Falcon-Mamba's second epsilon, the distance of T5's last bucket,
# DeepSeek's two scales of yarn, if they differ, and biases and an order of rotary pairs that its models do not have.
ALIKE = {**YARN, "truncate": True, "mscale": 1.2, "mscale_all_dim": 1.2}
CHANGED: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 24},
    "gemma3_text": {"query_pre_attn_scalar": 24},
    "gpt_neox_sequential": {"hidden_act": "gelu"},
    "gpt_oss": {"swiglu_limit": 7.0},
    "deepseek_v2_lite": {"attention_bias": False, "rope_parameters": ALIKE},
    "deepseek_v3": {"attention_bias": False, "rope_parameters": ALIKE},
    "deepseek_v3_plain": {"rope_interleave": True},
    "dots1": {"max_window_layers": 62},
    "qwen3_moe": {"mlp_only_layers": []},
    "qwen3_next": {"mlp_only_layers": []},
    "olmo3": {"rope_parameters": OLMO3_ROPES | {FULL: {**OLMO3_ROPES[FULL], "truncate": True}}},
    "falcon_mamba": {"mixer_rms_eps": 1e-6},
    "flan_t5": {"relative_attention_max_distance": 128},
    "umt5": {"relative_attention_max_distance": 128},
    "granite_hybrid": {"time_step_limit": [0.0, math.inf]},
    "granite_hybrid_moe": {"position_embedding_type": "nope"},
    "lfm2_moe": {"routed_scaling_factor": 1.0},
    "nemotron_h": {"layers_block_type": ["mamba", "moe", "attention", "moe"], "intermediate_size": 32},
}
NOT_IN_GGUF = {"smollm3_window"} | {
    "gpt_bigcode_mha",
    "falcon_rw",
    "qwen2_window",
    "phi_qk_norm",
    "gpt2_by_layer",
    "gpt2_unscaled",
}
NOT_IN_GGUF |= {"mamba_biased", "t5", "t5_deep_decoder", "t5_deep_encoder", "t5_own_head", "umt5_tied", "mt5"}
NOT_IN_GGUF |= {"falcon_h1", "falcon_h1_normed"}  # their multipliers are in the weights; see test_falcon_h1.py
NAMES = [
    name
    for name, fields in (ZOO | SEQ2SEQ).items()
    if fields["model_type"] in tiny_gguf.ARCHITECTURES and name not in NOT_IN_GGUF
]


def pair(name: str, directory: Path, **options: Any) -> tuple[ComposedSource, ComposedSource]:
    """The GGUF's parameters and the original's."""
    if name in SEQ2SEQ:
        checkpoint = write_seq2seq(directory, name, **CHANGED.get(name, {}))
    elif name in CHANGED:
        checkpoint = write_model(directory / name, ZOO[name] | CHANGED[name])
    else:
        checkpoint = write_zoo(directory, name)
    extra = longrope_factors(checkpoint) if "longrope" in name else {}
    path = write_tiny_gguf(checkpoint, directory / "x.gguf", extra=extra, **options)
    original = compose(Config.load(checkpoint / "config.json"), open_tensors(checkpoint))
    return open_gguf(GgufFile(path)), original


@pytest.mark.parametrize("name", [*NAMES, "baichuan_7b"])
def test_specification_and_parameters_are_the_original_s(name: str, tmp_path: Path) -> None:
    converted, original = pair(name, tmp_path)
    assert rounded(converted.spec) == rounded(original.spec)
    for parameter in parameter_table(original.spec):
        expected = original.read(parameter, ())
        np.testing.assert_allclose(converted.read(parameter, ()), expected, rtol=0, atol=2e-7, err_msg=parameter)


@pytest.mark.parametrize("name", [name for name in BAICHUAN if name.endswith("13b")])
def test_baichuan_13b_is_known_by_its_number_of_layers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(architectures, "ALIBI_13B", 2)
    converted, original = pair(name, tmp_path)
    assert rounded(converted.spec) == rounded(original.spec)
    qkv, expected = (source.read("layers.0.qkv", ()) for source in (converted, original))
    np.testing.assert_array_equal(qkv, expected)  # though rows of q and k are stored in pairs that nothing rotates


def test_every_architecture_is_written_by_the_test() -> None:
    assert {*tiny_gguf.ARCHITECTURES.values(), "nemotron_h_moe"} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", ["mixtral", "dbrx", "falcon_40b", "gemma", "gpt2", "gpt_oss", "stablelm_12b"])
def test_slices_equal_the_whole(name: str, tmp_path: Path) -> None:
    source, _ = pair(name, tmp_path, kind=gguf.GGMLQuantizationType.Q8_0)
    for parameter, described in parameter_table(source.spec).items():
        whole = source.read(parameter, ())
        for axis, extent in enumerate(described.shape):
            cut = (*[slice(None)] * axis, slice(extent // 2, extent))
            np.testing.assert_array_equal(source.read(parameter, cut), whole[cut])


@pytest.mark.parametrize(("model", "kind"), [("mixtral", "Q4_1"), ("gpt_oss", "MXFP4")])
def test_stacked_experts_stay_in_blocks(model: str, kind: str, tmp_path: Path) -> None:
    experts, _ = pair(model, tmp_path, kind=gguf.GGMLQuantizationType[kind])
    table = parameter_table(experts.spec)
    for name in ("layers.0.experts_gate_up", "layers.1.experts_down"):
        stored = experts.stored(name)
        assert stored is not None
        restored = multiplied_out(stored, table[name].shape, table[name].inputs)
        np.testing.assert_allclose(restored, experts.read(name, ()), rtol=0, atol=1e-6)


def test_what_a_file_holds_otherwise_than_the_model_is_read_in_floats(tmp_path: Path) -> None:
    """A state space's matrix is -exp of the model's, and its convolution has an axis less."""
    names = ("blk.0.ssm_a", "blk.0.ssm_conv1d.weight", "blk.0.ssm_in.weight")
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "mamba")
    for name in names:
        writer.add_tensor(name, np.zeros((4, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors = GgufTensors(GgufFile(tmp_path / "x.gguf"), plus_one=False)
    assert [tensors.quantized(name) is not None for name in names] == [False, False, True]


def test_layers_that_draft_are_not_read(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    layers = {"glm4moe.block_count": 3, "glm4moe.nextn_predict_layers": 1}
    further = {f"blk.2.{name}.weight": np.ones(64, np.float32) for name in ("attn_norm", "nextn.enorm")}
    source = open_gguf(GgufFile(write_tiny_gguf(zoo("glm4_moe"), tmp_path / "x.gguf", metadata=layers, extra=further)))
    assert source.spec.num_layers == 2


def test_an_ernie_without_a_shared_expert_says_nothing_of_it(tmp_path: Path) -> None:
    fields = ZOO["ernie4_5_moe"] | {"moe_num_shared_experts": 0}
    path = write_tiny_gguf(write_model(tmp_path / "model", fields), tmp_path / "x.gguf")
    assert "ernie4_5-moe.expert_shared_count" not in GgufFile(path).metadata
    experts = open_gguf(GgufFile(path)).spec.experts
    assert experts is not None and experts.shared_ffn_size == 0


def test_a_shared_expert_s_gate_may_have_one_dimension(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_tiny_gguf(zoo("qwen2_moe"), tmp_path / "x.gguf")
    data = path.read_bytes()
    dims = (b"blk.0.ffn_gate_inp_shexp.weight" + (2).to_bytes(4, "little") + (64).to_bytes(8, "little"), 12)
    assert data.count(dims[0]) == 1
    assert open_gguf(GgufFile(path)).read("layers.0.shared_gate", ()).shape == (1, 64)


@pytest.mark.parametrize(("layers", "scalar"), [(46, 144.0), (62, 168.0), (26, 256.0)])
def test_the_attention_scale_of_gemma_27b_is_its_own(layers: int, scalar: float) -> None:
    metadata = Config({"block_count": layers, "attention.key_length": 256}, "x")
    found = architectures.architecture("gemma2", None, metadata)  # type: ignore[arg-type]  # never looked at
    assert found.fixed["query_pre_attn_scalar"] == scalar


def rounded(spec: ModelSpec) -> Any:
    """The fields of `spec`, with floats to the seven digits that a GGUF file keeps."""

    def shorten(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shorten(item) for key, item in value.items()}
        if isinstance(value, list):
            return [shorten(item) for item in value]
        return float(f"{value:.6g}") if isinstance(value, float) else value

    fields = shorten(json.loads(spec.to_json()))
    for kind, described in zip(fields["kinds"], spec.kinds, strict=True):
        if described.rope is not None:
            kind["rope"]["attention_factor"] = shorten(attention_factor(described.rope))
    return fields

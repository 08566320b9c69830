"""Older and rarer configurations of each family mean what their own authors' code made of them, or are refused by name.

The tensors stay those of the zoo's checkpoint, so a spec that no longer fits them would be refused.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert.compose import compose
from convert.config.config import Config
from convert.errors import CheckpointError
from convert.families.family import alibi_slopes
from convert.formats.shards import open_tensors
from jaxengine.architecture.model import LayerKind, ModelSpec, Rope
from jaxengine.architecture.parameters import parameter_table
from tests.families.zoo import NAMES, YARN, ZOO

Zoo = Callable[[str], Path]


def spec_of(directory: Path, **changes: Any) -> ModelSpec:
    """The spec of `directory` with configuration keys replaced, or removed where the value is `...`."""
    values = json.loads((directory / "config.json").read_text()) | changes
    kept = {key: value for key, value in values.items() if value is not ...}
    return compose(Config(kept, "config.json"), open_tensors(directory)).spec


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("bloom", {"hidden_size": ..., "n_embed": 48, "n_layer": ..., "num_hidden_layers": 2, "n_head": ...}
         | {"num_attention_heads": 6, "seq_length": 2048, "offset_alibi": 100}),
        ("falcon_7b", {"model_type": "RefinedWebModel", "n_layer": 2, "num_hidden_layers": ..., "n_head": 4}
         | {"num_attention_heads": ..., "num_kv_heads": ..., "max_position_embeddings": ..., "rope_parameters": ...}
         | {"new_decoder_architecture": ...}),
        ("falcon_40b", {"model_type": "RefinedWeb", "n_layer": 2, "num_hidden_layers": ..., "n_head": 8}
         | {"num_attention_heads": ..., "n_head_kv": 2, "num_kv_heads": ..., "new_decoder_architecture": ...}
         | {"multi_query": ..., "num_ln_in_parallel_attn": ..., "rope_parameters": ...}),
        ("gemma2", {"layer_types": ...}),
        ("gemma3_text", {"layer_types": ..., "sliding_window_pattern": 3, "rope_parameters": ..., "rope_theta": 1e6}
         | {"rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
        ("cohere2", {"layer_types": ..., "sliding_window_pattern": 4}),
        ("cohere2", {"rope_parameters": ...}),
        ("gpt_neo", {"attention_layers": ...}),
        ("gpt_neo", {"attention_types": ...}),
        ("gpt_neox", {"rope_parameters": ..., "rotary_pct": 0.25, "rotary_emb_base": 10000}),
        ("gpt_oss", {"layer_types": ..., "rope_parameters": ..., "rope_theta": 10000.0, "rope_scaling": YARN}
         | {"num_experts_per_tok": ..., "experts_per_token": 2, "swiglu_alpha": ..., "attention_bias": ...}),
        ("phi", {"rope_parameters": ..., "partial_rotary_factor": 0.5, "rope_theta": 10000.0}),
        ("qwen2_window", {"layer_types": ...}),
        ("stablelm", {"rope_parameters": ..., "rope_theta": 10000.0}),
    ],
)  # fmt: skip
def test_old_spellings_give_the_same_spec(name: str, old: dict[str, Any], zoo: Zoo) -> None:
    assert spec_of(zoo(name), **old) == spec_of(zoo(name))


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_early_phi3_configurations_mean_longrope(kind: str, zoo: Zoo) -> None:
    rope = ZOO["phi3_longrope"]["rope_parameters"]
    scaling = {"type": kind, "short_factor": rope["short_factor"], "long_factor": rope["long_factor"]}
    old = {"rope_parameters": ..., "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "rope_scaling": scaling}
    assert spec_of(zoo("phi3_longrope"), **old) == spec_of(zoo("phi3_longrope"))


def test_phimoe_stretches_short_and_long_texts_apart(zoo: Zoo) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "short_mscale": 1.1, "long_mscale": 1.3}
    scaling = {"type": "longrope", "original_max_position_embeddings": 16, **factors}
    (kind,) = spec_of(zoo("phimoe"), rope_parameters=..., rope_scaling=scaling).kinds
    assert kind.rope is not None
    assert (kind.rope.short_attention_factor, kind.rope.attention_factor) == (1.1, 1.3)


def test_dbrx_s_own_key_of_the_rotary_base_is_read(zoo: Zoo) -> None:
    """transformers 5 reads another key, so it uses 10000 for the real checkpoints."""
    attention = {"clip_qkv": 1.0, "kv_n_heads": 2, "rope_theta": 500000.0}
    (kind,) = spec_of(zoo("dbrx"), rope_parameters=..., attn_config=attention).kinds
    assert kind.rope == Rope(theta=500000.0)


def test_a_gpt_oss_that_says_nothing_of_its_positions_has_those_of_the_released_models(zoo: Zoo) -> None:
    kinds = spec_of(zoo("gpt_oss"), rope_parameters=...).kinds
    assert {kind.rope for kind in kinds} == {Rope("yarn", 150000.0, 32.0, 4096, truncate=False)}


def test_starcoder_s_scores_may_be_unscaled(zoo: Zoo) -> None:
    (kind,) = spec_of(zoo("gpt_bigcode"), scale_attn_weights=False).kinds
    assert kind.scale == 1.0


def test_the_first_opts_had_no_final_norm(zoo: Zoo) -> None:
    assert not spec_of(zoo("galactica"), _remove_final_layer_norm=True).final_norm


def test_gemma_3_s_logits_may_be_capped(zoo: Zoo) -> None:
    assert spec_of(zoo("gemma3_text"), final_logit_softcapping=2.0).head.softcap == 2.0


@pytest.mark.parametrize(
    ("changes", "activation"),
    [
        ({"hidden_act": "gelu"}, "gelu_tanh"),
        ({"hidden_act": "relu"}, "relu"),
        ({"hidden_act": "gelu", "hidden_activation": "relu"}, "relu"),
    ],
)
def test_gelu_of_the_first_gemmas_is_the_tanh_form(changes: dict[str, str], activation: str, zoo: Zoo) -> None:
    assert spec_of(zoo("gemma"), **changes).activation == activation


def test_longrope_s_outer_length_counts(zoo: Zoo) -> None:
    """Phi 3 has the trained length twice; transformers reads the outer one."""
    scaling = {"rope_type": "longrope", "original_max_position_embeddings": 64, "rope_theta": 10000.0}
    parameters = {**ZOO["phi3_longrope"]["rope_parameters"], **scaling}
    assert spec_of(zoo("phi3_longrope"), rope_parameters=parameters) == spec_of(zoo("phi3_longrope"))


def test_a_window_that_no_layer_has_is_none(zoo: Zoo) -> None:
    changed = spec_of(zoo("qwen2_window"), use_sliding_window=False, layer_types=...)
    assert changed.kinds == (LayerKind(Rope()),)


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (1, [2**-8]),
    ],
)
def test_alibi_slopes_are_those_of_the_paper(heads: int, slopes: list[float]) -> None:
    assert alibi_slopes(heads) == tuple(slopes)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "other than False is not supported, got 'True'"),
        ("falcon_40b", {"parallel_attn": False}, "parallel_attn must be true where new_decoder_architecture is"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention other than False is not supported"),
        ("gpt_neo", {"attention_layers": ["global"]}, "attention_layers must name global or local for each of 2"),
        ("gpt_neo", {"attention_layers": ..., "attention_types": [3]}, r"attention_types must be a list of \[kinds, t"),
        ("gpt_neo", {"attention_layers": [["global"], "local"]}, "attention_layers must name global or local for each"),
        ("gpt_neo", {"attention_layers": ..., "attention_types": [[["x"], 10**12]]}, "attention_layers must name glob"),
        ("codegen", {"n_head": 2}, "n_head must be a multiple of 4, got '2'"),
        ("bloom", {"n_head": 2**30, "hidden_size": 2**30}, "n_head must be at most 1048576, got '1073741824'"),
        ("opt", {"max_position_embeddings": 2**30}, "learned positions must be at most 16777216, got 1073741824"),
        ("mamba", {"expand": 1e300}, "expand times hidden_size 48 must be at most 1048576"),
        ("mixtral", {"num_local_experts": 2**30}, "experts of all layers must be at most 262144, got 2147483648"),
        ("gptj", {"rotary_dim": 7}, "rope dim 7 must be even"),
        ("gptj", {"rotary_dim": 32}, "rope dim 32 is more than head_dim 16"),
        ("cohere2", {"use_qk_norm": True}, "use_qk_norm other than False is not supported"),
        ("gemma2", {"layer_types": ["sliding_attention"]}, "layer_types must name full_attention or sliding_attention"),
        ("gemma2", {"layer_types": [[1], [1], [1]]}, "layer_types must name full_attention or sliding_attention"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be positive"),
        ("gemma", {"hidden_activation": "xielu"}, "hidden_activation must be one of silu"),
        ("gemma", {"hidden_act": "xielu"}, "hidden_act must be one of silu, .*, got 'xielu'"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention other than False is not"),
        ("gpt_bigcode", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx other than False"),
        ("granite", {"logits_scaling": 0}, "logits_scaling must not be 0"),
        (
            "dbrx",
            {"ffn_config": {"moe_normalize_expert_weights": 2.0}},
            "moe_normalize_expert_weights must be 1 or null",
        ),
        ("gpt_oss", {"swiglu_limit": 0}, "the limit of a clamped gate must be positive, got 0"),
        ("mixtral", {"num_experts_per_tok": 5}, "5 experts used of 4"),
        ("phimoe", {"num_experts_per_tok": 1}, "the sparse mixer chooses 2 experts, not 1"),
        ("qwen2_window", {"use_sliding_window": False}, "layer_types must be a list without sliding_attention where"),
        ("qwen2", {"layer_types": 2}, "layer_types must be a list without sliding_attention where use_sliding_window"),
        ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window other than False is not supported"),
        ("qwen3_moe", {"mlp_only_layers": 1}, "mlp_only_layers must be a list of layer numbers"),
        ("mpt", {"norm_type": "rmsnorm"}, "norm_type rmsnorm is not supported"),
        ("mpt", {"attn_config": {"alibi": False}}, "attn_config: alibi other than True is not supported"),
        ("phi3_longrope", {"partial_rotary_factor": ..., "head_dim": 24}, "rope short_factors needs 9 entries, got 6"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(name: str, changes: dict[str, Any], message: str, zoo: Zoo) -> None:
    with pytest.raises(CheckpointError, match=f"config.json.*{message}"):
        spec_of(zoo(name), **changes)


@pytest.mark.parametrize("name", ["gpt2", "bloom", "opt", "qwen2", "mamba", "falcon_40b"])
def test_files_of_the_bare_model_are_read_too(name: str, zoo: Zoo, tmp_path: Path) -> None:
    prefix = r"^(model|transformer|backbone)\."
    bare = {re.sub(prefix, "", key): values for key, values in load_file(zoo(name) / "model.safetensors").items()}
    save_file(bare, tmp_path / "model.safetensors")
    config = Config.load(zoo(name) / "config.json")
    ours = compose(config, open_tensors(tmp_path))
    whole = compose(config, open_tensors(zoo(name)))
    for parameter in parameter_table(whole.spec):
        np.testing.assert_array_equal(ours.read(parameter, ()), whole.read(parameter, ()))


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_without_one_of_its_tensors_is_refused(name: str, zoo: Zoo, tmp_path: Path) -> None:
    tensors = load_file(zoo(name) / "model.safetensors")
    victim = sorted(key for key in tensors if "layers.1." in key or ".1." in key)[-1]
    save_file({key: values for key, values in tensors.items() if key != victim}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"lacks tensor '{victim}'"):
        compose(Config.load(zoo(name) / "config.json"), open_tensors(tmp_path))


@pytest.mark.parametrize(
    "name",
    ["codegen", "gpt_bigcode", "gptj", "phi3", "santacoder", "stablelm_12b", "cohere", "dbrx", "gpt_oss", "mixtral"],
)
def test_slices_of_reordered_parameters_equal_the_whole(name: str, zoo: Zoo) -> None:
    source = compose(Config.load(zoo(name) / "config.json"), open_tensors(zoo(name)))
    for parameter, described in parameter_table(source.spec).items():
        whole = source.read(parameter, ())
        for axis, extent in enumerate(described.shape):
            for cut in (slice(0, extent // 2 or 1), slice(extent // 2, extent)):
                index = (*(slice(None) for _ in range(axis)), cut)
                np.testing.assert_array_equal(source.read(parameter, index), whole[index])


def test_only_the_rows_that_are_read_of_a_unit_head_are_normalised(zoo: Zoo) -> None:
    directory = zoo("baichuan2_13b")
    source = compose(Config.load(directory / "config.json"), open_tensors(directory))
    some = source.read("head", (slice(7, 9), slice(3, 11)))
    stored = load_file(directory / "model.safetensors")["lm_head.weight"][7:9]
    np.testing.assert_allclose(some, (stored / np.linalg.norm(stored, axis=1, keepdims=True))[:, 3:11], rtol=1e-6)

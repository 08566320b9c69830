"""Configurations of Llamas: both spellings mean the same, and what is not implemented is refused by its key."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file, save_file

from convert.compose import compose
from convert.config.config import Config
from convert.errors import CheckpointError
from convert.formats.shards import open_tensors
from jaxengine.architecture.model import LayerKind, ModelSpec, Rope
from tests.tiny import TINY, reference_logits

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"factor": 8.0, "original_max_position_embeddings": 16}


def spec_of(directory: Path, **changes: Any) -> ModelSpec:
    """The spec of `directory` with configuration keys replaced, or removed where the value is `...`."""
    values = json.loads((directory / "config.json").read_text()) | changes
    kept = {key: value for key, value in values.items() if value is not ...}
    return compose(Config(kept, "config.json"), open_tensors(directory)).spec


def theta_of(spec: ModelSpec) -> float:
    (kind,) = spec.kinds
    assert kind.rope is not None
    return kind.rope.theta


@pytest.mark.parametrize("name", TINY)
def test_the_spec_has_the_values_transformers_computes_with(name: str, tiny: Callable[[str], Path]) -> None:
    spec, config = spec_of(tiny(name)), transformers.AutoConfig.from_pretrained(tiny(name))
    rope, (kind,) = config.rope_parameters, spec.kinds
    assert (spec.vocab_size, spec.hidden_size, spec.num_layers) == (320, 64, 2)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4, config.num_key_value_heads, config.head_dim)
    assert (spec.ffn_size, spec.norm.eps, spec.head.tied) == (96, 1e-5, config.tie_word_embeddings)
    assert kind.rope and (kind.rope.kind, kind.rope.theta) == (rope["rope_type"], rope["rope_theta"])
    assert kind.rope.factor == rope.get("factor", 1.0)
    assert spec.qkv_bias == spec.out_bias == getattr(config, "attention_bias", False)
    assert spec.mlp_bias == getattr(config, "mlp_bias", False)


@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        ("llama", None),
        ("llama3", {"rope_type": "llama3", **LLAMA3}),
        ("llama_linear", {"type": "linear", "factor": 4.0}),
        ("llama_dynamic", {"type": "dynamic", "factor": 2.0}),
        ("llama_yarn", {"type": "yarn", **YARN}),
        ("llama_yarn", {"rope_type": "yarn", **YARN}),
    ],
)
def test_old_and_new_spellings_give_equal_specs(name: str, scaling: Any, tiny: Callable[[str], Path]) -> None:
    new = spec_of(tiny(name))
    old = spec_of(tiny(name), rope_parameters=..., dtype=..., rope_theta=theta_of(new), rope_scaling=scaling)
    assert old == new


def test_an_empty_object_says_nothing_of_positions(tiny: Callable[[str], Path]) -> None:
    assert spec_of(tiny("llama_linear"), rope_scaling={}) == spec_of(tiny("llama_linear"))


def test_yarn_s_betas_of_0_mean_the_defaults_as_in_transformers(tiny: Callable[[str], Path]) -> None:
    options = {"rope_type": "yarn", "rope_theta": 1e4, **YARN, "beta_fast": 0, "beta_slow": 0}
    assert spec_of(tiny("llama_yarn"), rope_parameters=options) == spec_of(tiny("llama_yarn"))


def test_absent_keys_take_transformers_defaults(tiny: Callable[[str], Path]) -> None:
    absent = {
        "rope_parameters": ...,
        "rms_norm_eps": ...,
        "num_key_value_heads": ...,
        "head_dim": ...,
        "hidden_act": ...,
    }
    spec = spec_of(tiny("llama"), **absent, tie_word_embeddings=...)
    assert (spec.kinds, spec.norm.eps, spec.num_kv_heads, spec.head_dim) == ((LayerKind(Rope()),), 1e-6, 4, 16)
    assert (spec.activation, spec.head.tied) == ("silu", False)


def test_yarn_options_are_read(tiny: Callable[[str], Path]) -> None:
    options = {"beta_fast": 20, "beta_slow": 2, "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.9}
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "attention_factor": 1.25, **YARN, **options}
    expected = Rope("yarn", 1e4, 8.0, 16, beta_fast=20, beta_slow=2, truncate=False, attention_factor=1.25)
    spec = spec_of(tiny("llama_yarn"), rope_parameters=rope)
    assert spec.kinds == (LayerKind(Rope(**{**vars(expected), "mscale": 0.7, "mscale_all_dim": 0.9})),)


@pytest.mark.parametrize(
    ("name", "changes", "positions"),
    [
        ("llama", {}, 128),
        ("llama3", {}, 128),
        ("llama_linear", {}, 128),
        ("llama_linear", {"max_sequence_length": 512}, 512),
        ("llama_dynamic", {}, 32),
        ("llama_yarn", {"max_position_embeddings": 16}, 128),
    ],
)
def test_positions_are_stretched_where_the_scaling_says_so(
    name: str, changes: dict[str, Any], positions: int, tiny: Callable[[str], Path]
) -> None:
    assert spec_of(tiny(name), **changes).max_positions == positions


def test_biases_are_found_in_the_checkpoint(tiny: Callable[[str], Path]) -> None:
    spec = spec_of(tiny("llama_bias_hd"), attention_bias=..., mlp_bias=...)
    assert spec.qkv_bias and spec.out_bias and spec.mlp_bias


def test_a_promised_bias_must_be_there(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(CheckpointError, match=r"lacks 8 tensors: 'model\.layers\.0\.self_attn\.q_proj\.bias'"):
        spec_of(tiny("llama"), attention_bias=True)


def test_a_tied_model_with_its_own_head_uses_that_head(copy_of: Callable[[str], Path]) -> None:
    """transformers does the same, with a warning: `tie_word_embeddings` loses against a stored, different head."""
    directory = copy_of("llama3")
    path, ids = directory / "model.safetensors", [5, 6, 7]
    tied = reference_logits(directory, ids)
    head = np.random.default_rng(0).standard_normal((320, 64)).astype(np.float32)
    save_file(load_file(path) | {"lm_head.weight": head}, path, metadata={"format": "pt"})
    assert np.abs(reference_logits(directory, ids) - tied).max() > 0.1
    source = compose(Config.load(directory / "config.json"), open_tensors(directory))
    assert not source.spec.head.tied
    np.testing.assert_array_equal(source.read("head", ()), head)


def test_a_tied_embedding_may_be_stored_as_the_head_or_twice(copy_of: Callable[[str], Path]) -> None:
    """Some tools keep only the second name of a shared tensor."""
    directory = copy_of("llama3")
    path, ids = directory / "model.safetensors", [5, 6, 7]
    tensors, expected = load_file(path), reference_logits(directory, ids)
    embedding = tensors.pop("model.embed_tokens.weight")
    save_file(tensors | {"lm_head.weight": embedding}, path, metadata={"format": "pt"})
    np.testing.assert_array_equal(reference_logits(directory, ids), expected)
    source = compose(Config.load(directory / "config.json"), open_tensors(directory))
    assert source.spec.head.tied
    np.testing.assert_array_equal(source.read("embedding", ()), embedding)
    save_file(tensors | {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding.copy()}, path)
    assert compose(Config.load(directory / "config.json"), open_tensors(directory)).spec == source.spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "lama"}, "model_type is not supported; supported are .*llama, .*mistral.*, got 'lama'"),
        ({"model_type": ...}, "model_type is missing"),
        ({"hidden_act": "xielu"}, "hidden_act must be one of silu, .*, got 'xielu'"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "quant_method must be one of .*gptq.*, got 'aqlm'"),
        ({"rope_parameters": {"rope_type": "ntk"}}, "rope_type must be one of default, .*, got 'ntk'"),
        ({"rope_scaling": {"type": "ntk"}}, "type must be one of default, .*, got 'ntk'"),
        ({"rope_scaling": {"type": "su"}}, "original_max_position_embeddings is missing"),
        (
            {"rope_scaling": {"type": "su", "original_max_position_embeddings": 16}},
            "short_factor must be a list of at most 1024 numbers, got 'None'",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1 is not supported, got '0.5'"),
        ({"partial_rotary_factor": 1.5}, r"partial_rotary_factor must be in \(0, 1\], got '1.5'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, "factor must be a finite number, not negative, got '4'"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor must be at least 1, got '0.5'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 1e300}}, "factor must be at most 65536, got '1e.300'"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters: full_attention must not be an object: the pos"),
        ({"rope_theta": 0, "rope_parameters": ...}, "rope_theta must be positive"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object, got 'linear'"),
        ({"vocab_size": "320"}, "vocab_size must be a positive integer, got '320'"),
        ({"num_hidden_layers": 10**7}, "num_layers must be at most 4096, got 10000000"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, got '0'"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a positive integer, got 'True'"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"hidden_size": 66, "head_dim": ...}, "hidden_size must be a multiple of num_attention_heads 4, got '66'"),
        ({"hidden_size": 2**30}, "hidden_size must be at most 1048576, got 1073741824"),
        ({"head_dim": 2**29}, "num_heads times head_dim must be at most 1048576, got 2147483648"),
        ({"architectures": 5}, "architectures must be a list of names, got '5'"),
        ({"num_key_value_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"head_dim": 15}, "head_dim 15 must be even"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false, got 'no'"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    changes: dict[str, Any], message: str, tiny: Callable[[str], Path]
) -> None:
    with pytest.raises(CheckpointError, match=f"config.json.*{message}"):
        spec_of(tiny("llama"), **changes)


@pytest.mark.parametrize(("window", "expected"), [(8, 8), (127, 127), (..., 4096)])
def test_a_window_shorter_than_a_text_is_of_every_layer(
    window: Any, expected: int, tiny: Callable[[str], Path]
) -> None:
    changes = {"sliding_window": window, "max_position_embeddings": 8192 if window is ... else 128}
    assert [kind.window for kind in spec_of(tiny("mistral_full"), **changes).kinds] == [expected]


def test_a_window_that_is_no_number_is_refused(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(CheckpointError, match="sliding_window must be a positive integer, got '8'"):
        spec_of(tiny("mistral_full"), sliding_window="8")


@pytest.mark.parametrize("window", [None, 128, 4096])
def test_a_window_longer_than_every_text_is_none(window: int | None, tiny: Callable[[str], Path]) -> None:
    assert spec_of(tiny("mistral_full"), sliding_window=window) == spec_of(tiny("mistral_full"))


def test_unknown_private_and_code_keys_are_ignored(tiny: Callable[[str], Path]) -> None:
    noise = {"auto_map": {"AutoModel": "evil.Model"}, "_attn_implementation_internal": "x/y", "pretraining_tp": 4}
    assert spec_of(tiny("llama"), **noise) == spec_of(tiny("llama"))

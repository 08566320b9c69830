"""EAGLE's layers are read as their trainers store them, or refused by name before a weight is read."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from convert.drafters.drafter import base_of, has_drafter, is_drafter
from convert.errors import CheckpointError
from jaxengine.architecture.drafter import DRAFTER, Eagle
from jaxengine.architecture.model import Head, LayerKind, ModelSpec
from tests.convert.drafters.opened import HIDDEN, MODEL, VOCAB, change, change_tensors, opened, read
from tests.eagle import Kind, TinyEagle

DEEP = replace(MODEL, num_layers=12)
EAGLE3 = Kind((2, 6, 9), own_head=True, draft_vocab=200)
Changed = Callable[[dict[str, Any]], Any]


def spec_of(directory: Path, model: ModelSpec = MODEL) -> Eagle:
    spec = opened(directory, model).spec
    assert isinstance(spec, Eagle)
    return spec


def speculators(directory: Path, made: TinyEagle, **settings: Any) -> Path:
    """As the library "speculators" saves EAGLE-3."""
    made.write(directory, midlayer=False)
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 200,
        "transformer_layer_config": made.config.to_dict(),
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": "org/verifier", "architectures": ["LlamaForCausalLM"]},
        },
        **settings,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def assert_holds(directory: Path, made: TinyEagle, model: ModelSpec = DEEP) -> None:
    """Every number of the files is read, and where it belongs."""
    drafter, tensors = opened(directory, model), made.named(midlayer=False)
    heads, group, dim = made.kind.kv_heads, 4 // made.kind.kv_heads, HIDDEN // 4
    names = {"fusion": "fc.weight", "layers.0.mlp_norm": "layers.0.post_attention_layernorm.weight"}
    names |= {"layers.0.down": "layers.0.mlp.down_proj.weight"}
    names |= {"final_norm": "norm.weight", "layers.0.feature_norm": "layers.0.hidden_norm.weight"}
    names |= {"layers.0.attention_norm": "layers.0.input_layernorm.weight", "fusion_norm": "input_norm.weight"}
    names |= {"fusion_bias": "fc.bias", "fusion_norm.1": "fc_norm.1.weight", "head": "lm_head.weight", "offsets": "d2t"}
    stored = {name.removeprefix(DRAFTER) for name in drafter.spec.parameters()}
    for name in stored & set(names):
        np.testing.assert_array_equal(read(drafter, name), tensors[names[name]].numpy())
    assert {names[name] for name in stored & set(names)} >= {name for name in names.values() if name in tensors}
    qkv = read(drafter, "layers.0.qkv")
    parts = [tensors[f"layers.0.self_attn.{x}_proj.weight"].numpy() for x in "qkv"]
    np.testing.assert_array_equal(qkv[:, :group], parts[0].reshape(heads, group, dim, -1))
    np.testing.assert_array_equal(qkv[:, group], parts[1].reshape(heads, dim, -1))
    np.testing.assert_array_equal(qkv[:, group + 1], parts[2].reshape(heads, dim, -1))


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("midlayer", [True, False])
def test_eagle3_is_read_as_its_trainers_save_it(prefix: str, midlayer: bool, tmp_path: Path) -> None:
    made = TinyEagle(EAGLE3, HIDDEN, VOCAB)
    made.write(tmp_path, prefix=prefix, midlayer=midlayer, eagle_aux_hidden_state_layer_ids=None)
    assert_holds(tmp_path, made)
    spec = spec_of(tmp_path, DEEP)
    assert (spec.method, spec.taps, spec.own_head, spec.own_ids, spec.own_embedding) == (
        "eagle3",
        (2, 6, 9),
        True,
        True,
        False,
    )
    assert (spec.spec.vocab_size, spec.usual, spec.spec.max_positions) == (200, None, MODEL.max_positions)


def test_speculators_say_how_many_tokens_they_guess_and_for_which_model(tmp_path: Path) -> None:
    made = TinyEagle(Kind((1, 2), own_head=True, draft_vocab=200, norms="joined"), HIDDEN, VOCAB)
    speculators(tmp_path, made, eagle_aux_hidden_state_layer_ids=[1, 2], norm_before_fc=True)
    assert_holds(tmp_path, made, MODEL)
    spec = spec_of(tmp_path)
    assert (spec.usual, spec.taps, spec.fusion_norms) == (5, (1, 2), "joined")
    assert spec.norm_before_residual and not spec.norm_output  # where nothing is said
    assert base_of(tmp_path) == "org/verifier" and is_drafter(tmp_path)


def test_what_a_trainer_for_sglang_calls_a_layer_is_the_last_that_was_run(tmp_path: Path) -> None:
    """[1, 5, 8] of 12 layers are the usual ones, which EAGLE's own code calls 2, 6 and 9."""
    nested = {"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True}
    made = TinyEagle(EAGLE3, HIDDEN, VOCAB)
    made.write(tmp_path, eagle_aux_hidden_state_layer_ids=None, eagle_config=nested)
    assert spec_of(tmp_path, DEEP).taps == (2, 6, 9)
    made.write(tmp_path, eagle_aux_hidden_state_layer_ids=None, eagle_config={"use_aux_hidden_state": True})
    assert spec_of(tmp_path, DEEP).taps == (2, 6, 9)


@pytest.mark.parametrize(
    "kind", [Kind(), Kind(fc_bias=True, layers=2), Kind(own_head=True, kv_heads=4)], ids=["plain", "two", "head"]
)
def test_eagle_is_known_by_its_tensors_and_uses_the_models_embedding(kind: Kind, tmp_path: Path) -> None:
    made = TinyEagle(kind, HIDDEN, VOCAB)
    made.write(tmp_path)
    change_tensors(
        tmp_path / "model.safetensors",
        lambda tensors: tensors.update({"embed_tokens.weight": np.ones((VOCAB, HIDDEN), np.float32)}),
    )
    assert is_drafter(tmp_path) and has_drafter(tmp_path)
    assert_holds(tmp_path, made)
    spec = spec_of(tmp_path)
    assert (spec.method, spec.taps, spec.own_embedding, spec.own_head) == ("eagle", (), False, kind.own_head)
    assert (spec.bias, spec.spec.num_layers, spec.spec.final_norm) == (kind.fc_bias, kind.layers, False)
    assert f"{DRAFTER}layers.0.attention_norm" not in spec.parameters()


def test_eagle_is_read_from_pytorchs_files_and_under_vllms_configuration(tmp_path: Path) -> None:
    made = TinyEagle(Kind(), HIDDEN, VOCAB)
    made.write(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "model.safetensors").unlink()
    torch.save(made.named(), tmp_path / "pytorch_model.bin")
    assert_holds(tmp_path, made)
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "eagle", "architectures": ["EAGLEModel"], "model": settings})
    )
    assert_holds(tmp_path, made)


def test_a_window_of_its_layers_is_kept(tmp_path: Path) -> None:
    made = TinyEagle(EAGLE3, HIDDEN, VOCAB)
    made.write(tmp_path, layer_types=["sliding_attention"], sliding_window=16)
    (kind,) = spec_of(tmp_path, DEEP).spec.kinds
    assert isinstance(kind, LayerKind) and kind.window == 16


def test_it_is_known_without_its_names_in_the_configuration(tmp_path: Path) -> None:
    """By what no model has. Nvidia's Eagle 2.5 is a model that sees, and none of these."""
    TinyEagle(EAGLE3, HIDDEN, VOCAB).write(tmp_path, architectures=None)
    assert is_drafter(tmp_path)
    change(tmp_path, draft_vocab_size=None)
    assert is_drafter(tmp_path)
    change_tensors(tmp_path / "model.safetensors", without("fc.weight"))
    change(tmp_path, architectures=["Eagle2_5_VLForConditionalGeneration"])
    assert not is_drafter(tmp_path)


def test_a_small_model_is_none(tiny: Callable[[str], Path]) -> None:
    assert not is_drafter(tiny("llama")) and not has_drafter(tiny("llama"))


def without(*names: str) -> Changed:
    return lambda tensors: [tensors.pop(name) for name in names]


def put(name: str, values: np.ndarray) -> Changed:
    return lambda tensors: tensors.update({name: values})


@pytest.mark.parametrize(
    ("changed", "settings", "said"),
    [
        (without("fc.weight"), {}, "lacks tensor 'fc.weight'"),
        (without("midlayer.self_attn.k_proj.weight"), {}, "lacks tensor 'layers.0.self_attn.k_proj.weight'"),
        (without("norm.weight"), {}, None),  # then the head reads the state as it is
        (put("mask_hidden", np.ones(3, np.float32)), {}, "the model has no place for tensor 'mask_hidden'"),
        (put("layers.0.self_attn.q_norm.weight", np.ones(16, np.float32)), {}, "no place for tensor"),
        (put("d2t", np.full(200, -1)), {}, "tensor 'd2t' names id -1, the model's vocabulary has 320"),
        (put("d2t", np.full(200, 121)), {}, "tensor 'd2t' names id 320, the model's vocabulary has 320"),
        (without("d2t"), {}, "guesses 200 ids and has no 'd2t', the model has 320 tokens"),
        (put("d2t", np.zeros(199, np.int64)), {}, "tensor 'd2t' is int64 [199], must be one of int64, int32 with"),
        (put("d2t", np.zeros(200, np.float32)), {}, "tensor 'd2t' is float32 [200], must be one of int64, int32 with"),
        (
            put("midlayer.self_attn.q_proj.weight", np.ones((64, 64), np.float32)),
            {},
            "has shape [64, 64], the configuration says [64, 128]",
        ),
        (put("embed_tokens.weight", np.ones((300, 64), np.float32)), {}, "embeds 300 ids, the model has 320 tokens"),
        (
            put("fc.weight", np.ones((64, 96), np.float32)),
            {},
            "reads hidden states of 32 numbers, the model's have 64",
        ),
        (
            lambda tensors: None,
            {"eagle_aux_hidden_state_layer_ids": [2, 6, 13]},
            "eagle_aux_hidden_state_layer_ids must be ascending numbers of the model's 12 layers",
        ),
        (lambda tensors: None, {"eagle_aux_hidden_state_layer_ids": [6, 2, 9]}, "must be ascending numbers"),
        (lambda tensors: None, {"eagle_aux_hidden_state_layer_ids": [2, "6", 9]}, "must be ascending numbers"),
        (lambda tensors: None, {"eagle_aux_hidden_state_layer_ids": "2,6,9"}, "must be ascending numbers"),
        (
            lambda tensors: None,
            {"eagle_aux_hidden_state_layer_ids": None, "eagle_config": {"use_aux_hidden_state": False}},
            "use_aux_hidden_state other than true is not supported",
        ),
        (lambda tensors: None, {"norm_before_fc": True}, "lacks tensor 'input_norm.weight'"),
        (lambda tensors: None, {"fc_norm": True}, "lacks 3 tensors: 'fc_norm.0.weight'"),
        (lambda tensors: None, {"norm_output": "yes"}, "norm_output must be true or false"),
        (lambda tensors: None, {"speculators_model_type": "dflash"}, "speculators_model_type must be eagle3"),
        (lambda tensors: None, {"num_key_value_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    changed: Changed, settings: dict[str, Any], said: str | None, tmp_path: Path
) -> None:
    TinyEagle(EAGLE3, HIDDEN, VOCAB).write(tmp_path)
    change_tensors(tmp_path / "model.safetensors", changed)
    change(tmp_path, **settings)
    if said is None:
        assert not spec_of(tmp_path, DEEP).spec.final_norm
        return
    with pytest.raises(CheckpointError) as error:
        opened(tmp_path, DEEP)
    assert said in str(error.value)


def test_the_model_must_have_embeddings_of_its_size_unless_it_has_its_own(tmp_path: Path) -> None:
    """Of a small drafter for a model of wider states."""
    wide = replace(DEEP, hidden_size=96)
    made = TinyEagle(replace(EAGLE3, own_embedding=True), HIDDEN, VOCAB)
    made.fc = torch.nn.Linear(3 * 96, HIDDEN, bias=False)
    made.write(tmp_path)
    spec = spec_of(tmp_path, wide)
    assert (spec.model_hidden_size, spec.feature_size, spec.model_vocab_size) == (96, HIDDEN, VOCAB)
    change_tensors(tmp_path / "model.safetensors", without("lm_head.weight", "d2t"))
    with pytest.raises(
        CheckpointError, match=r"has no lm_head\.weight that reads 64 numbers, and the model's reads 96"
    ):
        opened(tmp_path, wide)
    change_tensors(tmp_path / "model.safetensors", without("embed_tokens.weight"))
    with pytest.raises(CheckpointError, match=r"has no embed_tokens\.weight of 64 numbers, and the model's has 96"):
        opened(tmp_path, wide)


def test_ids_that_are_no_tokens_may_be_in_the_head(tmp_path: Path) -> None:
    """The rows of the model's vocabulary that pad it: they are never guessed. A head of all ids has no choice of some,
    whatever `d2t` says of it.
    """
    padded = replace(DEEP, head=Head(tokens=250))
    TinyEagle(replace(EAGLE3, draft_vocab=300), HIDDEN, VOCAB).write(tmp_path)
    assert spec_of(tmp_path, padded).own_ids
    TinyEagle(replace(EAGLE3, draft_vocab=None), HIDDEN, VOCAB).write(tmp_path)
    change_tensors(tmp_path / "model.safetensors", put("d2t", np.zeros(VOCAB, np.int64)))
    spec = spec_of(tmp_path, padded)
    assert (spec.own_ids, spec.spec.vocab_size) == (False, VOCAB)


def test_what_was_copied_from_the_models_configuration_does_no_harm(tmp_path: Path) -> None:
    TinyEagle(EAGLE3, HIDDEN, VOCAB).write(tmp_path, layer_types=["full_attention"] * 12)
    assert spec_of(tmp_path, DEEP).spec.num_layers == 1


def test_without_numbers_the_layers_of_a_small_model_are_not_guessed(tmp_path: Path) -> None:
    TinyEagle(EAGLE3, HIDDEN, VOCAB).write(tmp_path, eagle_aux_hidden_state_layer_ids=None)
    with pytest.raises(CheckpointError, match="eagle_aux_hidden_state_layer_ids must be given for a model of 2 layers"):
        opened(tmp_path)


def test_what_is_said_within_eagle_config_counts_before_what_the_tensors_suggest(tmp_path: Path) -> None:
    made = TinyEagle(replace(EAGLE3, norms="joined"), HIDDEN, VOCAB)
    made.write(tmp_path, eagle_config={"norm_before_fc": False}, norm_before_fc=True)
    with pytest.raises(CheckpointError, match=r"no place for tensor 'input_norm\.weight'"):
        opened(tmp_path, DEEP)


def test_a_proposal_without_a_number_leaves_it_to_the_user(tmp_path: Path) -> None:
    made = TinyEagle(Kind((1, 2), own_head=True, draft_vocab=200), HIDDEN, VOCAB)
    config = {"proposal_methods": [{"proposal_type": "greedy"}]}
    speculators(tmp_path, made, eagle_aux_hidden_state_layer_ids=[1, 2], speculators_config=config)
    assert spec_of(tmp_path).usual is None


def test_by_its_name_alone_it_is_refused_unless_it_says_for_which_model(tmp_path: Path) -> None:
    TinyEagle(Kind(), HIDDEN, VOCAB).write(tmp_path)
    with pytest.raises(CheckpointError, match="is a drafter without base_model_name_or_path; name the base"):
        base_of(tmp_path)

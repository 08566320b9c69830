"""An adapter is refused by name, before a weight is read, where it is damaged or means what cannot be merged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert.adapters.adapter import CONFIG, open_adapter
from convert.errors import USAGE, CheckpointError
from convert.source import open_model
from jaxengine.architecture.parameters import parameter_table

WEIGHTS = "adapter_model.safetensors"
Q = "base_model.model.model.layers.0.self_attn.q_proj"


needs_a_model = pytest.mark.slow


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """Of a Llama with 64 hidden and 96 inner elements: rank 4, two modules."""
    directory, rng = tmp_path / "adapter", np.random.default_rng(0)
    directory.mkdir()
    (directory / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 6}))
    sizes = {Q: (64, 64), "base_model.model.model.layers.0.mlp.down_proj": (64, 96)}
    tensors = {}
    for name, (outputs, inputs) in sizes.items():
        tensors[f"{name}.lora_A.weight"] = rng.standard_normal((4, inputs), np.float32)
        tensors[f"{name}.lora_B.weight"] = rng.standard_normal((outputs, 4), np.float32)
    save_file(tensors, directory / WEIGHTS)
    return directory


def change(directory: Path, **settings: Any) -> None:
    path = directory / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def change_tensors(directory: Path, changed: Callable[[dict[str, Any]], Any]) -> None:
    tensors = load_file(directory / WEIGHTS)
    changed(tensors)
    save_file(tensors, directory / WEIGHTS)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type must be LORA, got 'IA3'"),
        ({"use_qalora": True}, "use_qalora is not supported"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters is not supported"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices is not supported"),
        ({"layer_replication": [[0, 2]]}, "layer_replication is not supported"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights is not supported: the base's own weights"),
        ({"r": 5}, "r says rank 5 of module 'model.layers.0.mlp.down_proj', its tensors have 4"),
        ({"rank_pattern": {"q_proj": 8}}, "says rank 8 of module 'model.layers.0.self_attn.q_proj'"),
        ({"alpha_pattern": {"q_proj(": 8}}, "alpha_pattern has a pattern that is not a regular expression"),
        ({"lora_alpha": "much"}, "lora_alpha must be a finite number"),
    ],
)
def test_a_configuration_is_refused_by_name(settings: dict[str, Any], said: str, adapter: Path) -> None:
    change(adapter, **settings)
    with pytest.raises(CheckpointError, match=r"adapter_config\.json") as error:
        open_adapter(adapter)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda t: t.pop(f"{Q}.lora_B.weight"), "module 'model.layers.0.self_attn.q_proj' has no lora_B"),
        (lambda t: t.update({f"{Q}.lora_B.weight": t[f"{Q}.lora_B.weight"][:, :3].copy()}), "has shapes [4, 64] and"),
        (lambda t: t.update({f"{Q}.lora_A.weight": t[f"{Q}.lora_A.weight"] * np.nan}), "numbers that are not finite"),
        (lambda t: t.update({f"{Q}.lora_A.weight": t[f"{Q}.lora_A.weight"].astype(int)}), "has type int64"),
        (lambda t: t.update({f"{Q}.lora_ga.weight": t[f"{Q}.lora_A.weight"]}), "lora_ga.weight' is not supported"),
        (lambda t: t.update({"q_proj.lora_A.weight": t[f"{Q}.lora_A.weight"]}), "must begin with 'base_model.model.'"),
        (lambda t: t.update({f"{Q}.lora_magnitude_vector": np.ones(3, "f4")}), "has 3 numbers, must have 64"),
        (lambda t: t.clear(), "the adapter has no tensors"),
    ],
)
def test_damaged_tensors_are_refused_by_name(changed: Callable[[Any], Any], said: str, adapter: Path) -> None:
    change_tensors(adapter, changed)
    with pytest.raises(CheckpointError) as error:
        open_adapter(adapter)
    assert said in str(error.value)


def test_files_must_be_there(adapter: Path) -> None:
    (adapter / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"no adapter_model.safetensors or adapter_model.bin"):
        open_adapter(adapter)
    (adapter / CONFIG).unlink()
    with pytest.raises(CheckpointError, match=r"no adapter_config.json"):
        open_adapter(adapter)


@needs_a_model
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            lambda t: t.update({key.replace("layers.0", "layers.7"): t.pop(key) for key in list(t)}),
            "changes 'model.layers.7.mlp.down_proj', the model has no such module",
        ),
        (
            lambda t: t.update({f"{Q}.lora_A.weight": np.ones((4, 63), "f4")}),
            "changes [out, in] [64, 63], the model has [64, 64]",
        ),
        (
            lambda t: t.update({"base_model.model.model.norm.weight": np.ones(63, "f4")}),
            "'model.norm.weight' has shape [63], the configuration says [64]",
        ),
        (
            lambda t: t.update({"base_model.model.model.extra.weight": np.ones(63, "f4")}),
            "the model has no place for tensor 'model.extra.weight'",
        ),
        (lambda t: t.update({f"{Q}.lora_B.bias": np.ones(64, "f4")}), "has a bias (lora_bias), the model's module has"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(
    changed: Callable[[Any], Any], said: str, adapter: Path, tiny: Callable[[str], Path]
) -> None:
    change_tensors(adapter, changed)
    with pytest.raises(CheckpointError) as error:
        open_model(str(tiny("llama2_gqa")), adapter=str(adapter))
    assert said in str(error.value)


@needs_a_model
def test_an_embedding_that_is_the_head_too_is_not_changed(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    from tests.tiny_adapter import adapted  # imports torch

    adapted(tiny("llama3"), target_modules=["embed_tokens"]).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"changes the embedding 'model.embed_tokens.weight', which is the head"):
        open_model(str(tiny("llama3")), adapter=str(tmp_path))


@needs_a_model
def test_the_name_of_an_adapter_is_that_of_its_base_with_it(adapter: Path, tiny: Callable[[str], Path]) -> None:
    base = str(tiny("llama2_gqa"))
    change(adapter, base_model_name_or_path=base)
    named, merged, plain = open_model(str(adapter)), open_model(base, adapter=str(adapter)), open_model(base)
    assert named.model_id == str(adapter) and merged.model_id == base
    for name in parameter_table(plain.source.spec):
        np.testing.assert_array_equal(named.source.read(name, ()), merged.source.read(name, ()))
    q = "layers.0.qkv"
    assert not np.array_equal(merged.source.read(q, ()), plain.source.read(q, ()))


@pytest.mark.parametrize(
    ("base", "said"), [("", "has no base_model_name_or_path"), ("no/such/model", "no such file or directory")]
)
def test_an_adapter_without_its_base_is_refused(base: str, said: str, adapter: Path) -> None:
    change(adapter, base_model_name_or_path=base)
    with pytest.raises(CheckpointError, match=said):
        open_model(str(adapter))


def test_an_adapter_of_an_adapter_is_refused(adapter: Path) -> None:
    with pytest.raises(CheckpointError, match="is an adapter itself") as error:
        open_model(str(adapter), adapter=str(adapter))
    assert error.value.exit_code == USAGE


@needs_a_model
def test_an_adapter_of_weights_that_are_no_floats_is_refused(adapter: Path, tiny: Callable[[str], Path]) -> None:
    from tests.tiny_quantized import FORMATS, write_quantized

    name = next(name for name in FORMATS if name.startswith("gptq"))
    target = write_quantized(tiny("llama2_gqa"), adapter.parent / "quantised", FORMATS[name])
    with pytest.raises(CheckpointError, match="cannot be merged with weights that are quantised"):
        open_model(str(target / "quantised"), adapter=str(adapter))
    with pytest.raises(CheckpointError, match=r"is a GGUF file, so no adapter can be merged"):
        open_model(None, adapter=str(adapter))

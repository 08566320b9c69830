"""An adapter is refused by name, before a weight is read, where it is damaged or means what cannot be merged."""

import json
import shutil
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
DOWN = "base_model.model.model.layers.0.mlp.down_proj"
ONE, TWO = np.ones(1, np.float32), np.ones((2, 64), np.float32)


needs_a_model = pytest.mark.slow


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """Of a Llama with 64 hidden and 96 inner elements: rank 4, two modules."""
    directory, rng = tmp_path / "adapter", np.random.default_rng(0)
    directory.mkdir()
    (directory / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 6}))
    sizes = {Q: (64, 64), DOWN: (64, 96)}
    tensors = {}
    for name, (outputs, inputs) in sizes.items():
        tensors[f"{name}.lora_A.weight"] = rng.standard_normal((4, inputs), np.float32)
        tensors[f"{name}.lora_B.weight"] = rng.standard_normal((outputs, 4), np.float32)
    save_file(tensors, directory / WEIGHTS)
    return directory


def change(directory: Path, **settings: Any) -> None:
    path = directory / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def factors(module: str, outputs: int, inputs: int, names: str = "lora_{}.weight") -> dict[str, np.ndarray]:
    sizes = {"A": (4, inputs), "B": (outputs, 4)}
    return {f"{module}.{names.format(each)}": np.ones(size, np.float32) for each, size in sizes.items()}


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
        ({"alpha_pattern": {"q_proj(": 8}}, "alpha_pattern has a pattern"),
        ({"alpha_pattern": {"a{99999999999}": 8}}, "alpha_pattern has a pattern"),
        ({"alpha_pattern": {"(?:(\\w|.)+)+#?[0-9]": 8}}, "that cannot be matched (TimeoutError"),
        ({"alpha_pattern": {"(" * 3000: 8}}, "alpha_pattern has a pattern"),
        ({"lora_alpha": "much"}, "lora_alpha must be a finite number"),
        ({"lora_alpha": 10**400}, "lora_alpha must be a finite number"),
        ({"init_lora_weights": "lora_ga"}, "init_lora_weights is not supported: the base's own weights"),
        ({"init_lora_weights": "newer"}, "init_lora_weights is not known, so it may have changed the base's own"),
        ({"use_dora": True}, "use_dora contradicts module 'model.layers.0.mlp.down_proj', which has no lora_magnitude"),
        ({"base_model_name_or_path": ["a"]}, "base_model_name_or_path must be a string"),
        ({"revision": 5}, "revision must be a string"),
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
        (lambda t: t.update({f"{Q}.lora_magnitude_vector": np.ones(64, "f4")}), "which has a lora_magnitude_vector"),
        (lambda t: t.update({f"{Q}.lora_embedding_A": t[f"{Q}.lora_A.weight"]}), "is there as"),
        (
            lambda t: t.update({"base_model.model.n.weight": ONE, "base_model.model.n.base_layer.weight": ONE}),
            "is there",
        ),
        (lambda t: t.update({"base_model.model.n.weight": ONE[:0]}), "has shape [0], so no numbers"),
        (lambda t: t.clear(), "the adapter has no tensors"),
    ],
)
def test_damaged_tensors_are_refused_by_name(changed: Callable[[Any], Any], said: str, adapter: Path) -> None:
    change_tensors(adapter, changed)
    with pytest.raises(CheckpointError) as error:
        open_adapter(adapter)
    assert said in str(error.value) and str(adapter) in str(error.value)


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
            "adapter: tensor 'model.norm.weight' has shape [63], the configuration says [64]",
        ),
        (
            lambda t: t.update({"base_model.model.model.extra.weight": np.ones(63, "f4")}),
            "the model has no place for tensor 'model.extra.weight'",
        ),
        (lambda t: t.update({f"{Q}.lora_B.bias": np.ones(64, "f4")}), "has a bias (lora_bias), the model's module has"),
        (
            lambda t: t.update({key.replace("model.model.model", "model.model"): t[key] for key in list(t)}),
            "changes 'model.layers.0.mlp.down_proj.weight', as 'layers.0.mlp.down_proj' does",
        ),
        (
            lambda t: t.update(factors(DOWN, 96, 64)),
            "changes [out, in] [96, 64], the model has [64, 96]",
        ),
        (
            lambda t: t.update(factors("base_model.model.model.embed_tokens", 320, 64, "lora_embedding_{}")),
            "'model.embed_tokens' changes [out, in] [320, 64], the model has [64, 320]",
        ),
        (
            lambda t: t.update({**factors("base_model.model.score", 2, 64), "base_model.model.score.weight": TWO}),
            "the model has no place for tensor 'score.weight'",
        ),
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
def test_an_embedding_that_is_the_head_too_is_changed_with_it(adapter: Path, tiny: Callable[[str], Path]) -> None:
    rows, names = np.ones((320, 64), np.float32), ("model.embed_tokens", "lm_head")
    change_tensors(adapter, lambda t: t.update({f"base_model.model.{name}.weight": rows for name in names}))
    source = open_model(str(tiny("llama3")), adapter=str(adapter)).source
    assert source.spec.head.tied
    np.testing.assert_array_equal(source.read("embedding", ()), rows)


@needs_a_model
def test_more_tokens_than_the_model_has_are_refused(adapter: Path, tiny: Callable[[str], Path]) -> None:
    rows = {"base_model.model.model.embed_tokens.weight": np.ones((330, 64), np.float32)}
    change_tensors(adapter, lambda t: t.update(rows))
    for name, said in (("llama3", "which is the head too"), ("llama2_gqa", r"has shape \[330, 64\], the conf")):
        with pytest.raises(CheckpointError, match=said):
            open_model(str(tiny(name)), adapter=str(adapter))


@needs_a_model
def test_a_number_too_large_is_refused_when_it_is_read(adapter: Path, tiny: Callable[[str], Path]) -> None:
    change_tensors(adapter, lambda t: t.update({name: values * np.float32(1e30) for name, values in t.items()}))
    source = open_model(str(tiny("llama2_gqa")), adapter=str(adapter)).source
    with pytest.raises(
        CheckpointError, match=r"makes a number of 'model.layers.0.self_attn.q_proj.weight' that float32"
    ):
        source.read("layers.0.qkv", ())


@needs_a_model
def test_the_tokenizer_is_the_adapter_s_and_settings_of_generation_are_its_base_s(
    adapter: Path, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny("llama2_gqa"), base)
    (base / "generation_config.json").write_text('{"temperature": 0.6}')
    change(adapter, base_model_name_or_path=str(base))
    shutil.copyfile(base / "tokenizer.json", adapter / "tokenizer.json")
    (adapter / "tokenizer_config.json").write_text('{"chat_template": "its own"}')
    directory = open_model(str(adapter), cache_dir=tmp_path / "cache").directory
    assert json.loads((directory / "generation_config.json").read_text()) == {"temperature": 0.6}
    assert json.loads((directory / "tokenizer_config.json").read_text()) == {"chat_template": "its own"}
    (adapter / "generation_config.json").write_text('{"temperature": 0.7}')
    directory = open_model(str(adapter), cache_dir=tmp_path / "cache").directory
    assert json.loads((directory / "generation_config.json").read_text()) == {"temperature": 0.7}


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
    shutil.copyfile(Path(base) / "config.json", adapter / "config.json")  # as some tools do
    np.testing.assert_array_equal(open_model(str(adapter)).source.read(q, ()), merged.source.read(q, ()))
    shutil.copyfile(Path(base) / "model.safetensors", adapter / "model.safetensors")  # a model, merged or not
    shutil.copyfile(Path(base) / "tokenizer.json", adapter / "tokenizer.json")
    np.testing.assert_array_equal(open_model(str(adapter)).source.read(q, ()), plain.source.read(q, ()))


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("", "has no base_model_name_or_path"),
        ("no/such/model", "no such file or directory"),
        ("~no-such-user/model", "no such file or directory"),
    ],
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


@needs_a_model
def test_weights_that_are_no_floats_stay_so_where_the_adapter_changes_others(
    adapter: Path, tiny: Callable[[str], Path]
) -> None:
    from tests.tiny_quantized import FORMATS, write_quantized

    name = next(name for name in FORMATS if name.startswith("gptq"))
    target = write_quantized(tiny("llama2_gqa"), adapter.parent / "quantised", FORMATS[name])
    save_file(factors("base_model.model.lm_head", 320, 64), adapter / WEIGHTS)
    source = open_model(str(target / "quantised"), adapter=str(adapter)).source
    assert source.stored("layers.0.qkv") is not None and source.stored("head") is None


@needs_a_model
def test_experts_stay_in_four_bits_where_the_adapter_changes_attention(
    adapter: Path, zoo: Callable[[str], Path]
) -> None:
    from tests.tiny_quantized import write_gpt_oss

    target = write_gpt_oss(zoo("gpt_oss"), adapter.parent / "gpt_oss")
    save_file(factors(Q, 96, 64), adapter / WEIGHTS)
    source = open_model(str(target / "mxfp4"), adapter=str(adapter)).source
    assert source.stored("layers.0.experts_gate_up") is not None
    plain = open_model(str(target / "mxfp4")).source
    np.testing.assert_array_equal(source.read("layers.0.experts_down", ()), plain.read("layers.0.experts_down", ()))
    assert not np.array_equal(source.read("layers.0.qkv", ()), plain.read("layers.0.qkv", ()))

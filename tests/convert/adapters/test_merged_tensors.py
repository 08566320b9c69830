"""A model with an adapter merged while it is read is the one that PEFT merges, parameter by parameter."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from convert.adapters import merged_tensors
from convert.adapters.adapter import CONFIG, open_adapter
from convert.adapters.merged_tensors import MergedTensors
from convert.compose import compose
from convert.config.config import Config
from convert.families.multimodal import RENAMES
from convert.formats.safetensors import SafetensorsFile
from convert.formats.shards import open_tensors
from convert.formats.tensors import whole
from jaxengine.architecture.parameters import ParameterSource, parameter_table
from tests.families.forward import Forward
from tests.jaxengine.engines import prompt
from tests.tiny_adapter import adapted, logits, write_adapter

pytestmark = pytest.mark.slow

Checkpoints = Callable[[str], Path]
WEIGHTS = "adapter_model.safetensors"
FAMILIES = (
    *("llama3", "bloom", "cohere2", "falcon_40b", "gemma2", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "mixtral"),
    *("mpt", "olmo2", "opt", "phi3", "phimoe", "qwen2_moe", "qwen3", "stablelm_12b", "starcoder2"),
    *("t5_own_head", "bart"),
)
# Of Mixtral PEFT takes "all-linear" to mean the experts too, as parameters of three axes.
TARGETS = {"mixtral": ["q_proj", "k_proj", "v_proj", "o_proj"]}
TARGETS["deepseek_v3"] = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
# Of a Llama: what PEFT can be told, by what it makes of the file.
OPTIONS: dict[str, dict[str, Any]] = {
    "patterns": {"rank_pattern": {"q_proj": 3, "layers.1.mlp.up_proj": 9}, "alpha_pattern": {"o_proj|down_proj": 1}},
    "rslora": {"use_rslora": True, "r": 9},
    "some layers": {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1]},
    "regex": {"target_modules": r".*\.(0\.mlp\.gate|1\.self_attn\.v)_proj"},
    "dora": {"use_dora": True},
    "bias": {"bias": "all"},
    "bias of lora": {"bias": "lora_only", "target_modules": ["q_proj", "o_proj"]},
    "lora_bias": {"lora_bias": True, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "head": {"target_modules": ["lm_head", "v_proj"]},
    "modules_to_save": {
        "target_modules": ["q_proj"],
        "modules_to_save": ["lm_head", "embed_tokens", "input_layernorm"],
    },
    "embedding": {"target_modules": ["embed_tokens", "k_proj"]},
}


def opened(directory: Path, adapter: Path | None = None) -> ParameterSource:
    found = open_adapter(adapter) if adapter else None
    return compose(Config.load(directory / "config.json"), open_tensors(directory), found)


def assert_equal(ours: ParameterSource, expected: ParameterSource, before: ParameterSource) -> None:
    changed = 0
    assert ours.spec == expected.spec
    for name in parameter_table(ours.spec):
        merged = expected.read(name, ())
        np.testing.assert_allclose(ours.read(name, ()), merged, atol=2e-5, err_msg=name)
        changed += not np.array_equal(merged, before.read(name, ())) if name in parameter_table(before.spec) else 1
    assert changed


@pytest.mark.parametrize("name", (*FAMILIES, "deepseek_v3"))
def test_it_is_peft_s_of_every_linear_module(
    name: str, tiny: Checkpoints, zoo: Checkpoints, seq2seq: Checkpoints, tmp_path: Path
) -> None:
    kind = seq2seq if name in ("t5_own_head", "bart") else tiny if name.startswith("llama") else zoo
    model = kind(name)
    write_adapter(tmp_path, model, target_modules=TARGETS.get(name, "all-linear"))
    assert_equal(opened(model, tmp_path / "adapter"), opened(tmp_path / "merged"), opened(model))


@pytest.mark.parametrize("option", OPTIONS)
def test_it_is_peft_s_with_every_option(option: str, tiny: Checkpoints, tmp_path: Path) -> None:
    model = tiny("llama_bias_hd")
    write_adapter(tmp_path, model, **OPTIONS[option])
    assert_equal(opened(model, tmp_path / "adapter"), opened(tmp_path / "merged"), opened(model))


@pytest.mark.parametrize("option", ["dora", "patterns"])
def test_it_is_peft_s_where_matrices_are_stored_in_out(option: str, zoo: Checkpoints, tmp_path: Path) -> None:
    write_adapter(tmp_path, zoo("gpt2"), target_modules=["c_attn", "c_proj", "c_fc"], **OPTIONS[option])
    assert_equal(opened(zoo("gpt2"), tmp_path / "adapter"), opened(tmp_path / "merged"), opened(zoo("gpt2")))


def test_a_head_stored_out_in_beside_matrices_stored_in_out_is_peft_s(zoo: Checkpoints, tmp_path: Path) -> None:
    model = zoo("gpt2_unscaled")  # whose head is not its embedding
    write_adapter(tmp_path, model, target_modules=["c_proj", "lm_head"])
    assert_equal(opened(model, tmp_path / "adapter"), opened(tmp_path / "merged"), opened(model))


@pytest.mark.parametrize("name", ["llama3", "gpt2"])
def test_its_logits_are_those_of_peft_unmerged(name: str, tiny: Checkpoints, zoo: Checkpoints, tmp_path: Path) -> None:
    model = tiny(name) if name == "llama3" else zoo(name)
    made, ids = adapted(model, seed=1), prompt(24, seed=1)
    made.save_pretrained(tmp_path)
    ours = Forward(opened(model, tmp_path)).prefill(0, ids, 0, len(ids))
    np.testing.assert_allclose(ours, logits(made, ids), atol=1e-3)
    assert np.abs(ours - Forward(opened(model)).prefill(0, ids, 0, len(ids))).max() > 0.1


@pytest.mark.parametrize("name", ["llama_bias_hd", "gpt2"])
def test_a_slice_is_that_of_the_whole(
    name: str, tiny: Checkpoints, zoo: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo(name) if name == "gpt2" else tiny(name)
    adapted(model, use_dora=True).save_pretrained(tmp_path)
    whole, sliced = opened(model, tmp_path), opened(model, tmp_path)
    expected = {name: whole.read(name, ()) for name in parameter_table(whole.spec)}
    monkeypatch.setattr(merged_tensors, "ROWS", 7)
    for name, values in expected.items():
        index = tuple(slice(size // 2, size) for size in values.shape)
        np.testing.assert_allclose(sliced.read(name, index), values[index], atol=1e-6, err_msg=name)


def test_a_read_takes_little_more_memory_than_what_it_makes(tmp_path: Path) -> None:
    names, shape = ("merged.weight", "replaced.weight"), (4096, 512)
    save_file({name: np.zeros(shape, np.float16) for name in names}, tmp_path / "model.safetensors")
    (tmp_path / CONFIG).write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 1}')
    factors = {"merged.lora_A.weight": np.ones((1, 512), "f4"), "merged.lora_B.weight": np.ones((4096, 1), "f4")}
    tensors = {**factors, "replaced.weight": np.ones(shape, np.float32)}
    save_file({f"base_model.model.{name}": values for name, values in tensors.items()}, tmp_path / WEIGHTS)
    tracemalloc.start()
    try:
        merged = MergedTensors(SafetensorsFile(tmp_path / "model.safetensors"), open_adapter(tmp_path))
        assert tracemalloc.get_traced_memory()[0] < 2**20
        tracemalloc.reset_peak()
        assert merged.read("replaced.weight", shape, (slice(0, 8), slice(None))).all()
        assert tracemalloc.get_traced_memory()[1] < 2**20
        assert merged.read("merged.weight", shape, (slice(None), slice(None))).all()
        assert tracemalloc.get_traced_memory()[1] < 3 * 2**22  # thrice what it makes
    finally:
        tracemalloc.stop()


def test_the_head_is_found_under_the_older_name_of_a_model_that_takes_pictures(tmp_path: Path) -> None:
    save_file({"lm_head.weight": np.zeros((8, 4), np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / CONFIG).write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 1}')
    factors = {"lora_A.weight": np.ones((1, 4), np.float32), "lora_B.weight": np.ones((8, 1), np.float32)}
    head = "base_model.model.language_model.lm_head"
    save_file({f"{head}.{name}": values for name, values in factors.items()}, tmp_path / WEIGHTS)
    merged = MergedTensors(SafetensorsFile(tmp_path / "model.safetensors"), open_adapter(tmp_path), RENAMES)
    assert whole(merged, "lm_head.weight").all()


def test_it_has_the_checkpoint_s_type(tiny: Checkpoints, tmp_path: Path) -> None:
    from tests.tiny import write_tiny

    model = write_tiny(tmp_path / "model", "llama2_gqa", dtype="bfloat16")
    adapted(model).save_pretrained(tmp_path / "adapter")
    source = opened(model, tmp_path / "adapter")
    assert {source.read(name, ()).dtype.name for name in parameter_table(source.spec)} == {"bfloat16"}

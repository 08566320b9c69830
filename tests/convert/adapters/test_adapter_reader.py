"""What an adapter adds to a running model is what PEFT merges with it, matrix by matrix of the parameter table."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import peft
import pytest
import transformers
from huggingface_hub import constants

from convert.checkpoint import write_checkpoint
from convert.compose import adapter_reader, compose
from convert.config.config import Config
from convert.errors import CheckpointError, MissingAdapter
from convert.families import family_of
from convert.formats.gguf import GgufFile
from convert.formats.shards import open_tensors
from convert.llama_cpp import architectures
from convert.llama_cpp.config import config_of
from convert.source import open_model, with_rope
from jaxengine.architecture.adaptation import Adaptable, AdapterReader, AdapterWeights, LowRank
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource, parameter_table
from tests.convert.adapters.made_adapter import adapter_of
from tests.convert.adapters.test_merged_tensors import FAMILIES, OPTIONS, TARGETS, opened
from tests.convert.llama_cpp.test_architectures import NAMES, pair
from tests.families.test_multimodal import write as write_multimodal
from tests.tiny_adapter import adapted, write_adapter
from tests.tiny_quantized import write_quantized
from tests.tiny_vision import write_vision

pytestmark = pytest.mark.slow

Checkpoints = Callable[[str], Path]
# PEFT refuses Mamba's out_proj, which transformers' own kernels pass by.
MODULES = {**TARGETS, "mamba": ["in_proj", "x_proj", "dt_proj"]}
OPTIONS_OF_PRODUCTS = ("patterns", "rslora", "some layers", "regex")
# Whose q, k and v are one module, so that one product changes all of them.
FUSED = ("bloom", "codegen", "falcon_40b", "gpt2", "gpt_bigcode", "gpt_neox", "mpt", "phi3")
OF_LAYERS = ("qkv", "out", "gate_up", "down", "cross_q", "cross_kv", "cross_out", "router", "shared_gate")
OF_LAYERS += ("shared_gate_up", "shared_down", "in_proj", "x_proj", "dt_proj", "out_proj")
OF_LAYERS += ("head_gate", "linear_in", "linear_gate", "linear_rates", "linear_out")
OF_LAYERS += ("mamba_in", "mamba_shared", "mamba_rates", "mamba_out", "short_in", "short_out")
OF_LAYERS += ("q", "q_a", "kv_a", "input_gate", "input_out")


def matrices_of_layers(spec: ModelSpec) -> tuple[str, ...]:
    return tuple(name for name in parameter_table(spec) if "layers." in name and name.rsplit(".")[-1] in OF_LAYERS)


def product(adaptable: Adaptable, matrix: LowRank) -> np.ndarray:
    """f32 [out…, in]: what is added, by the definition of `jaxengine.architecture.adaptation`."""
    if adaptable.axis is None:
        return matrix.b @ matrix.a[0]
    b = np.moveaxis(matrix.b, adaptable.axis, 0)  # [units, …, rank]
    made = [rows @ matrix.a[part] for rows, part in zip(b, adaptable.parts, strict=True)]
    return np.moveaxis(np.stack(made), 0, adaptable.axis)


def added(base: ParameterSource, reader: AdapterReader, weights: AdapterWeights) -> Iterator[tuple[str, np.ndarray]]:
    """Every parameter of `base` with what `weights` add to it."""
    assert weights.matrices
    for name, parameter in parameter_table(base.spec).items():
        values = base.read(name, ())
        if name in weights.matrices:
            change = product(reader.targets[name], weights.matrices[name])
            assert change.any()
            values = values + change.reshape(parameter.shape)
        yield name, values


def assert_adds_up(directory: Path, adapter: Path, expected: ParameterSource) -> AdapterWeights:
    """The model in `directory` with `adapter` is `expected`."""
    base = open_model(str(directory))
    assert base.adapters
    weights = base.adapters.read(str(adapter))
    for name, values in added(base.source, base.adapters, weights):
        np.testing.assert_allclose(values, expected.read(name, ()), atol=3e-5, err_msg=name)
    return weights


@pytest.mark.parametrize("name", (*FAMILIES, "codegen", "mamba"))
def test_it_is_peft_s_of_every_linear_module(
    name: str, tiny: Checkpoints, zoo: Checkpoints, seq2seq: Checkpoints, tmp_path: Path
) -> None:
    kind = seq2seq if name in ("t5_own_head", "bart") else tiny if name.startswith("llama") else zoo
    model = kind(name)
    write_adapter(tmp_path, model, target_modules=MODULES.get(name, "all-linear"))
    weights = assert_adds_up(model, tmp_path / "adapter", opened(tmp_path / "merged"))
    assert weights.rank == 4
    if name != "mamba":
        assert (len(weights.matrices["layers.0.qkv"].a) == 1) == (name in FUSED)


def test_what_makes_keys_and_values_of_latents_takes_no_product(zoo: Checkpoints, tmp_path: Path) -> None:
    *products, absorbed, out = TARGETS["deepseek_v3"]
    write_adapter(tmp_path / "all", zoo("deepseek_v3"), target_modules=[*products, absorbed, out])
    write_adapter(tmp_path / "some", zoo("deepseek_v3"), target_modules=[*products, out])
    weights = assert_adds_up(zoo("deepseek_v3"), tmp_path / "some" / "adapter", opened(tmp_path / "some" / "merged"))
    assert {name for name in weights.matrices if "layers.2" in name} == {
        f"layers.2.{name}" for name in ("q_a", "q", "kv_a", "out")
    }
    reader = open_model(str(zoo("deepseek_v3"))).adapters
    with pytest.raises(CheckpointError, match=r"kv_b_proj' is .*, which cannot be added while a model runs; merge"):
        assert reader and reader.read(str(tmp_path / "all" / "adapter"))


@pytest.mark.parametrize("option", OPTIONS_OF_PRODUCTS)
def test_it_is_peft_s_with_every_option(option: str, tiny: Checkpoints, tmp_path: Path) -> None:
    write_adapter(tmp_path, tiny("llama_bias_hd"), **OPTIONS[option])
    assert_adds_up(tiny("llama_bias_hd"), tmp_path / "adapter", opened(tmp_path / "merged"))


def test_modules_that_it_does_not_change_have_zeros(tiny: Checkpoints, tmp_path: Path) -> None:
    settings = {"target_modules": ["q_proj", "v_proj", "up_proj"], "rank_pattern": {"v_proj": 2}}
    write_adapter(tmp_path, tiny("llama2_gqa"), layers_to_transform=[1], **settings)
    weights = assert_adds_up(tiny("llama2_gqa"), tmp_path / "adapter", opened(tmp_path / "merged"))
    assert weights.matrices.keys() == {"layers.1.qkv", "layers.1.gate_up"}
    qkv, gate_up = weights.matrices["layers.1.qkv"], weights.matrices["layers.1.gate_up"]
    assert qkv.a.shape == (3, 4, 64) and qkv.b.shape == (2, 4, 16, 4)
    assert not qkv.a[1].any() and not qkv.b[:, 2].any()  # k
    assert not qkv.a[2, 2:].any() and not qkv.b[:, 3, :, 2:].any()  # v, of rank 2
    assert not gate_up.a[0].any() and not gate_up.b[0].any()


def test_outputs_are_numbered_by_module(tiny: Checkpoints, zoo: Checkpoints) -> None:
    llama, phi3 = (open_model(str(model)).adapters for model in (tiny("llama2_gqa"), zoo("phi3")))
    assert llama and phi3
    assert llama.targets["layers.0.qkv"] == Adaptable((0, 0, 1, 2), axis=1)
    assert llama.targets["layers.0.gate_up"] == Adaptable((0, 1), axis=0)
    assert {phi3.targets[f"layers.0.{name}"] for name in ("qkv", "gate_up", "out", "down")} == {Adaptable()}
    assert {name.rsplit(".")[-1] for name in llama.targets} == {"qkv", "out", "gate_up", "down"}


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "idefics3"])
def test_it_is_peft_s_of_the_text_part_of_a_model_that_takes_pictures(name: str, tmp_path: Path) -> None:
    whole = write_multimodal(tmp_path / "model", name)
    modules = r".*(language|text)_model.*\.(q_proj|o_proj|up_proj)"
    made = peft.get_peft_model(whole, peft.LoraConfig(r=4, target_modules=modules, init_lora_weights=False))
    made.save_pretrained(tmp_path / "adapter")
    made.merge_and_unload().save_pretrained(tmp_path / "merged")
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tmp_path / "model" / file, tmp_path / "merged" / file)
    expected = open_model(str(tmp_path / "merged")).source
    weights = assert_adds_up(tmp_path / "model", tmp_path / "adapter", expected)
    assert len(weights.matrices) == 3 * expected.spec.num_layers


def test_layers_that_attend_to_pictures_have_queries_of_their_own_and_keys_for_all(tmp_path: Path) -> None:
    """A picture has keys and values once, for all who see it, whatever their adapters: a refusal names the matrix."""
    directory = write_vision(tmp_path, "mllama")
    for modules in ("q_proj|o_proj", "k_proj", "v_proj"):
        whole = transformers.AutoModelForImageTextToText.from_pretrained(directory)
        config = peft.LoraConfig(r=4, target_modules=rf".*cross_attn\.({modules})", init_lora_weights=False)
        peft.get_peft_model(whole, config).save_pretrained(tmp_path / modules)
    reader = open_model(str(directory)).adapters
    assert reader
    queries = reader.read(str(tmp_path / "q_proj|o_proj"))
    assert queries.matrices.keys() == {f"layers.{layer}.cross_{name}" for layer in (1, 3) for name in ("q", "out")}
    for name in ("k_proj", "v_proj"):
        with pytest.raises(CheckpointError, match=rf"layers\.1\.cross_attn\.{name}.*pictures.*--merge-adapter"):
            reader.read(str(tmp_path / name))


@pytest.mark.parametrize("name", [*NAMES, "baichuan_7b", "baichuan_13b"])
def test_a_gguf_file_takes_the_adapters_of_the_checkpoint_that_it_was_made_of(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(architectures, "ALIBI_13B", 2 if name == "baichuan_13b" else 40)
    source, original = pair(name, tmp_path)
    directory = tmp_path / name
    config, tensors = Config.load(directory / "config.json"), open_tensors(directory)
    adapter = adapter_of(original.spec, family_of(config), matrices_of_layers(original.spec))
    reader = adapter_reader(config_of(GgufFile(tmp_path / "x.gguf"))[0], source.spec, lambda _: adapter)
    assert reader
    weights = reader.read("any")
    assert weights.matrices.keys() == reader.targets.keys()
    expected = compose(config, tensors, adapter)
    for parameter, values in added(source, reader, weights):
        np.testing.assert_allclose(values, expected.read(parameter, ()), atol=1e-4, err_msg=parameter)


@pytest.mark.parametrize(
    "name",
    [
        "santacoder",
        "gptj",
        "falcon_7b",
        "baichuan_7b",
        "dbrx",
        "opt_350m",
        "falcon_mamba",
        "gpt_oss",
        "qwen3_5",
        "qwen3_next",
        "granite_hybrid",
        "lfm2",
    ],
)
def test_it_is_what_merging_makes_of_other_layouts(name: str, zoo: Checkpoints) -> None:
    config, tensors = Config.load(zoo(name) / "config.json"), open_tensors(zoo(name))
    base = compose(config, tensors)
    adapter = adapter_of(base.spec, family_of(config), matrices_of_layers(base.spec))
    reader = adapter_reader(config, base.spec, lambda _: adapter)
    assert reader
    weights = reader.read("any")
    assert weights.matrices.keys() == reader.targets.keys()
    expected = compose(config, tensors, adapter)
    for parameter, values in added(base, reader, weights):
        np.testing.assert_allclose(values, expected.read(parameter, ()), atol=1e-4, err_msg=parameter)


@pytest.mark.parametrize("format", ["gptq_act", "nf4", "fp8", "awq"])
@pytest.mark.parametrize("name", ["llama2_gqa", "gpt2"])
def test_a_quantised_model_takes_the_adapters_of_the_one_in_floats(
    name: str, format: str, tiny: Checkpoints, zoo: Checkpoints, tmp_path: Path
) -> None:
    model = zoo(name) if name == "gpt2" else tiny(name)
    write_quantized(model, tmp_path, format)
    adapted(model).save_pretrained(tmp_path / "adapter")
    readers = [open_model(str(tmp_path / each)).adapters for each in (format, "dense")]
    quantised, dense = (reader and reader.read(str(tmp_path / "adapter")) for reader in readers)
    assert quantised and dense and quantised.digest == dense.digest


def test_adapters_are_added_to_one_that_is_merged(tiny: Checkpoints, tmp_path: Path) -> None:
    model = tiny("llama2_gqa")
    for name, seed in (("one", 1), ("two", 2)):
        adapted(model, seed=seed).save_pretrained(tmp_path / name)
    base, one, two = (open_model(str(model), adapter=each and str(tmp_path / each)) for each in (None, "one", "two"))
    one = with_rope(one, "linear", 2.0)
    assert one.adapters
    for name, values in added(one.source, one.adapters, one.adapters.read(str(tmp_path / "two"))):
        expected = one.source.read(name, ()) + two.source.read(name, ()) - base.source.read(name, ())
        np.testing.assert_allclose(values, expected, atol=3e-5, err_msg=name)


def test_our_own_checkpoints_have_no_names_that_an_adapter_could_change(tiny: Checkpoints, tmp_path: Path) -> None:
    model = open_model(str(tiny("llama2_gqa")))
    write_checkpoint(model.source, model.directory, tmp_path / "own")
    assert model.adapters and open_model(str(tmp_path / "own")).adapters is None


@pytest.mark.parametrize("name", ["/no/such/directory", "~nobody/adapter", "a//b", "a/b@main"])
def test_an_adapter_that_is_not_there_is_told_from_one_that_is_wrong(
    name: str, tiny: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    reader = open_model(str(tiny("llama2_gqa")), cache_dir=tmp_path / "cache").adapters
    assert reader
    with pytest.raises(MissingAdapter, match=r"^adapter '.*(no such file or directory|not in the cache)") as error:
        reader.read(name)
    assert isinstance(error.value, LookupError)  # as one knows it who does not import this package
    with pytest.raises(CheckpointError, match=r"no adapter_config\.json") as wrong:
        reader.read(str(tmp_path))
    assert not isinstance(wrong.value, LookupError)


def test_an_adapter_that_cannot_be_read_is_one_line(
    tiny: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = open_model(str(tiny("llama2_gqa"))).adapters
    assert reader
    with pytest.raises(CheckpointError, match=r"adapter 'aaa.*' cannot be read: File name too long"):
        reader.read("a" * 5000)

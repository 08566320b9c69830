"""The module among a model's own tensors is found however these are stored, and fits the model as it is."""

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from convert.config.rope_override import override_rope
from convert.errors import CheckpointError
from convert.outline import HEADERS, open_outline
from convert.source import OpenModel, open_model, with_rope
from jaxengine.architecture.drafter import DRAFTER, DrafterSource, Eagle
from tests.convert.fake_hub import fake_hub
from tests.families.zoo import ZOO
from tests.mtp import TinyModule
from tests.tiny_quantized import write_quantized
from tests.tiny_vision import QWEN, QWEN_IDS

LAYERS = 2
BESIDE = ("qwen3_5", "qwen3_5_moe", "qwen3_next")


@pytest.fixture
def with_module(zoo: Callable[[str], Path], tmp_path: Path) -> Path:
    return TinyModule(zoo("glm4_moe")).write(tmp_path / "model")


@pytest.fixture
def beside(zoo: Callable[[str], Path], tmp_path: Path) -> Path:
    """A model beside which it stands."""
    return TinyModule(zoo("qwen3_5")).write(tmp_path / "model")


def module_of(model: OpenModel) -> DrafterSource:
    assert model.module is not None
    return model.module(model.source.spec)


@pytest.mark.parametrize("format", ["gptq", "awq", "fp8_blocks", "ct_fp8", "nf4"])
def test_a_quantised_module_is_that_of_the_same_weights_in_floats(
    format: str, with_module: Path, tmp_path: Path
) -> None:
    """Its matrix of both inputs too, whose tensors have other names then."""
    written = write_quantized(with_module, tmp_path, format)
    quantised, floats = (module_of(open_model(str(written / name))) for name in (format, "dense"))
    for name in floats.spec.parameters():
        np.testing.assert_allclose(quantised.read(name, ()), floats.read(name, ()), rtol=1e-2, atol=1e-3, err_msg=name)


def test_scales_of_a_cache_may_be_there_for_its_layer_too(with_module: Path) -> None:
    """A tool that calibrates goes through all that a checkpoint has. Those of the model's layers count."""
    file = with_module / "model.safetensors"
    scales = {f"model.layers.{i}.self_attn.{x}_scale": torch.tensor(i + 1.0) for i in range(LAYERS + 1) for x in "kv"}
    save_file(load_file(file) | scales, file, {"format": "pt"})
    model = open_model(str(with_module))
    assert model.source.spec.cache_scales == ((1.0, 1.0), (2.0, 2.0))
    assert module_of(model).read(f"{DRAFTER}fusion", ()).shape == (64, 128)


def test_it_has_the_positions_that_the_model_is_given(with_module: Path) -> None:
    model = open_model(str(with_module))
    spec = module_of(with_rope(model, "linear", 2.0)).spec
    assert isinstance(spec, Eagle)
    assert spec.spec.kinds[0].rope == override_rope(model.source.spec, "linear", 2.0).kinds[-1].rope


def test_headers_on_the_hub_tell_of_it(with_module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub({"org/model": with_module}) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        files = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", files)
        made = open_outline("org/model", cache_dir=tmp_path / "cache")
        here = open_model(str(with_module))
        assert made.known_from == HEADERS
        assert replace(made.model.source.spec, head=here.source.spec.head) == here.source.spec
        assert module_of(made.model).spec == module_of(here).spec


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe"])
def test_that_of_a_model_that_sees_is_that_of_its_text_part(
    name: str, zoo: Callable[[str], Path], tmp_path: Path
) -> None:
    """It stands beside both. Whole models' rope has three positions for a token, alike without pictures."""
    made, text = TinyModule(zoo(name)), tmp_path / "text"
    made.write(text)
    tower = {**QWEN, "num_position_embeddings": 16, "out_hidden_size": ZOO[name]["hidden_size"]}
    fields = {"text_config": copy.deepcopy(ZOO[name]), "vision_config": tower, **QWEN_IDS}
    whole = transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.for_model(name, **fields))
    whole.save_pretrained(tmp_path / "whole")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(text / file, tmp_path / "whole")
    file = tmp_path / "whole" / "model.safetensors"
    save_file(load_file(file) | made.named(), file, {"format": "pt"})
    ours, theirs = (module_of(open_model(str(tmp_path / each))) for each in ("whole", "text"))
    alone = module_of(open_model(str(tmp_path / "whole"), language_model_only=True))
    for parameter in theirs.spec.parameters():
        np.testing.assert_array_equal(ours.read(parameter, ()), theirs.read(parameter, ()))
        np.testing.assert_array_equal(alone.read(parameter, ()), theirs.read(parameter, ()))


@pytest.mark.parametrize("name", BESIDE)
def test_experts_of_one_beside_the_model_may_be_stored_apart(
    name: str, zoo: Callable[[str], Path], tmp_path: Path
) -> None:
    """As they are where modules were quantised; its MLP has experts where its tensors say so."""
    written = write_quantized(TinyModule(zoo(name)).write(tmp_path / "model"), tmp_path, "fp8_blocks")
    quantised, floats = (module_of(open_model(str(written / each))) for each in ("fp8_blocks", "dense"))
    assert isinstance(floats.spec, Eagle)
    assert floats.spec.spec.kinds[0].experts == (name != "qwen3_5") and not floats.spec.spec.keeps_states
    for parameter in floats.spec.parameters():
        found, expected = quantised.read(parameter, ()), floats.read(parameter, ())
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-3, err_msg=parameter)


def test_one_with_an_embedding_of_its_own_is_refused(beside: Path) -> None:
    config = json.loads((beside / "config.json").read_text())
    (beside / "config.json").write_text(json.dumps(config | {"mtp_use_dedicated_embeddings": True}))
    model = open_model(str(beside))
    with pytest.raises(CheckpointError, match=r"config.json: mtp_use_dedicated_embeddings other than False"):
        module_of(model)


def stored_otherwise(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> OpenModel:
    """The model in `directory` with its tensors as `change` leaves them."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
    return open_model(str(directory))


def test_what_is_missing_is_named_as_it_is_stored(beside: Path) -> None:
    model = stored_otherwise(beside, lambda tensors: tensors.pop("mtp.norm.weight"))
    with pytest.raises(CheckpointError, match=r"lacks tensor 'mtp\.norm\.weight'"):
        module_of(model)


def test_modules_that_predict_several_tokens_are_not_read(beside: Path) -> None:
    further = {"mtp.layers.1.input_layernorm.weight": torch.ones(64)}
    assert stored_otherwise(beside, lambda tensors: tensors.update(further)).module is None


def test_experts_of_which_the_model_has_none_are_refused(beside: Path) -> None:
    experts = {"mtp.layers.0.mlp.experts.0.up_proj.weight": torch.ones(8, 64)}
    model = stored_otherwise(beside, lambda tensors: tensors.update(experts))
    with pytest.raises(CheckpointError, match=r"config\.json: .*experts, the model describes none"):
        module_of(model)


@pytest.mark.parametrize("name", ["gpt2", "bloom", "falcon_mamba"])
def test_a_model_without_one_is_opened_whatever_its_configuration_calls_its_layers(
    name: str, zoo: Callable[[str], Path]
) -> None:
    assert open_model(str(zoo(name))).module is None

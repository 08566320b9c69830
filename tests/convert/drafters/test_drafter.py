"""A drafter comes with the model that it is named for, or brings the model that it was learnt for."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from convert.drafters.drafter import is_drafter
from convert.errors import USAGE, CheckpointError
from convert.source import OpenModel, open_model
from jaxengine.architecture.drafter import DrafterSource
from jaxengine.architecture.model import Embedding
from jaxengine.architecture.parameters import parameter_table
from tests.convert.drafters.opened import HIDDEN, MODEL, VOCAB, change, opened
from tests.convert.tiny_gguf import write_tiny_gguf
from tests.tiny_adapter import adapted
from tests.tiny_drafters import write_medusa, write_mlp_speculator

BASE = "llama2_gqa"


def write(kind: str, directory: Path, base: Path | str = "") -> Path:
    if kind == "medusa":
        return write_medusa(directory, str(base), HIDDEN, VOCAB)
    return write_mlp_speculator(directory, str(base), HIDDEN, VOCAB, inner=48)


def of(model: OpenModel) -> DrafterSource:
    assert model.drafter is not None
    return model.drafter


def assert_same(one: DrafterSource, other: DrafterSource) -> None:
    assert one.spec == other.spec
    for name in one.spec.parameters():
        np.testing.assert_array_equal(one.read(name, ()), other.read(name, ()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["medusa", "mlp_speculator"])
def test_the_name_of_a_drafter_is_that_of_its_base_with_it(
    kind: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    base = tiny(BASE)
    directory = write(kind, tmp_path / kind, base)
    named, beside, plain = (
        open_model(str(directory)),
        open_model(str(base), drafter=str(directory)),
        open_model(str(base)),
    )
    assert_same(of(named), of(beside))
    assert_same(of(named), opened(directory))
    assert plain.drafter is None
    assert (named.model_id, beside.model_id) == (str(directory), str(base))
    assert (named.directory, named.eos_token_ids, named.checkpoint) == (base, plain.eos_token_ids, base)
    for name in parameter_table(plain.source.spec):
        np.testing.assert_array_equal(named.source.read(name, ()), plain.source.read(name, ()))


@pytest.mark.slow
def test_a_gguf_file_has_a_drafter_too(tiny: Callable[[str], Path], cache: Path, tmp_path: Path) -> None:
    file = write_tiny_gguf(tiny(BASE), tmp_path / "tiny.gguf")
    directory = write("medusa", tmp_path / "heads", file)
    for model in (
        open_model(str(directory), cache_dir=cache),
        open_model(str(file), cache_dir=cache, drafter=str(directory)),
    ):
        assert_same(of(model), opened(directory))


@pytest.mark.slow
def test_an_adapter_is_merged_with_the_model_that_a_drafter_drafts_for(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    base, adapter = tiny(BASE), tmp_path / "adapter"
    heads = write("medusa", tmp_path / "heads", base)
    adapted(base).save_pretrained(adapter)
    merged = open_model(str(base), adapter=str(adapter)).source.read("layers.0.qkv", ())
    found = [
        open_model(str(heads), adapter=str(adapter)),
        open_model(str(base), adapter=str(adapter), drafter=str(heads)),
        open_model(str(adapter), drafter=str(heads)),
    ]
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": str(heads)}))
    found.append(open_model(str(adapter)))
    for model in found:
        np.testing.assert_array_equal(model.source.read("layers.0.qkv", ()), merged)
        assert_same(of(model), opened(heads))


@pytest.mark.slow
def test_heads_beside_a_model_are_read_where_they_are_named(copy_of: Callable[[str], Path], tmp_path: Path) -> None:
    """As Medusa-2 is published: the model was trained together with its heads."""
    model = copy_of(BASE)
    heads = write("medusa", tmp_path / "heads")
    shutil.copyfile(heads / "medusa_lm_head.safetensors", model / "medusa_lm_head.safetensors")
    change(model, medusa_num_heads=3, medusa_num_layers=1)
    assert open_model(str(model)).drafter is None
    assert_same(of(open_model(str(model), drafter=str(model))), opened(heads))


def test_a_drafter_of_a_drafter_is_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write("medusa", first, second)
    write("mlp_speculator", second, first)
    for arguments in ({"model_id": str(first)}, {"model_id": str(first), "drafter": str(second)}):
        with pytest.raises(CheckpointError, match="is a drafter itself; name one drafter, or its base") as error:
            open_model(**arguments)
        assert error.value.exit_code == USAGE


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("", "config.json: is a drafter without base_model_name_or_path; name the base, and this as the model of"),
        (None, "config.json: is a drafter without base_model_name_or_path; name the base, and this as the model of"),
        ("no/such/model", "model 'no/such/model': no such file or directory, and not a hub id"),
        ("~no-such-user/model", "model '~no-such-user/model': no such file or directory"),
        (["a"], "base_model_name_or_path must be a string"),
    ],
)
@pytest.mark.parametrize("kind", ["medusa", "mlp_speculator"])
def test_a_drafter_without_its_base_is_refused(kind: str, base: Any, said: str, tmp_path: Path) -> None:
    write(kind, tmp_path)
    change(tmp_path, base_model_name_or_path=base)
    with pytest.raises(CheckpointError) as error:
        open_model(str(tmp_path))
    assert said in str(error.value)


def test_vllm_s_heads_say_that_they_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "medusa", "num_heads": 3}')
    save_file({"blocks.0.layers.0.weight": np.ones((2, 2), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="is a drafter without base_model_name_or_path"):
        open_model(str(tmp_path))


def test_what_is_no_drafter_is_refused_before_a_model_is_opened(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="drafter 'no/such/heads': no such file or directory, and not a hub id"):
        open_model("no/such/model", drafter="no/such/heads")


def test_a_model_type_that_is_no_text_is_of_no_drafter(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": ["medusa"]}')
    assert not is_drafter(tmp_path)


@pytest.mark.slow
def test_a_model_has_no_heads(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        opened(tiny("llama"))
    said = "model_type of a drafter must be one of medusa, mlp_speculator, eagle, and without medusa_num_heads or a ten"
    assert said in str(error.value) and str(error.value).endswith("got 'llama'")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_size": 128}, "the drafter reads hidden states of 64 numbers, the model's have 128"),
        ({"vocab_size": 321}, "the drafter has a vocabulary of 320, the model of 321"),
        (
            {"embedding": Embedding(width=32)},
            "no drafter can be used with this model: its head reads 32 numbers, made of the 64 of a hidden state",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["medusa", "mlp_speculator"])
def test_a_drafter_of_another_model_is_refused_with_both_numbers(
    kind: str, changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError) as error:
        opened(write(kind, tmp_path), replace(MODEL, **changed))
    assert f"{tmp_path / 'config.json'}: {said}" in str(error.value)

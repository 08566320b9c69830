"""Medusa heads are read as the program that stored them has them, or refused by name before a weight is read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from convert.drafters.stored_drafter import StoredDrafter
from convert.errors import CheckpointError
from jaxengine.architecture.drafter import DRAFTER, Medusa
from tests.convert.drafters.opened import HIDDEN, VOCAB, change, change_tensors, opened, read
from tests.tiny_drafters import write_medusa

FILE = "medusa_lm_head.safetensors"
VLLM = {"model_type": "medusa", "num_heads": 3, "num_hidden_layers": 2, "hidden_size": HIDDEN, "vocab_size": VOCAB}
Changed = Callable[[dict[str, Any]], Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.silu(self.linear(x))


def own_heads(heads: int, layers: int, *, with_matrix: bool = True) -> nn.ModuleList:
    """Heads as Medusa's own code has them, which saves their `state_dict`."""
    torch.manual_seed(0)
    matrix = [nn.Linear(HIDDEN, VOCAB, bias=False)] if with_matrix else []
    return nn.ModuleList(
        nn.Sequential(*(Block() for _ in range(layers)), *(nn.Linear(HIDDEN, VOCAB, bias=False) for _ in matrix))
        for _ in range(heads)
    )


class Layers(nn.Module):
    def __init__(self, layers: int, bias: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN, bias=bias) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + nn.functional.silu(layer(x))
        return x


class VllmHeads(nn.Module):
    """Heads as vLLM has them."""

    def __init__(self, *, bias: bool = False, original: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Layers(2, bias) for _ in range(3))
        if original:
            self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)
        else:
            self.lm_heads = nn.ModuleList(nn.Linear(HIDDEN, VOCAB, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        heads = self.lm_heads if hasattr(self, "lm_heads") else [self.lm_head] * 3
        return [head(block(x)) for head, block in zip(heads, self.blocks, strict=True)]


def described(directory: Path, **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def logits(drafter: StoredDrafter, hidden: np.ndarray) -> list[np.ndarray]:
    """What each head makes of `hidden` [n, hidden], by the formula of `Medusa`: [n, vocab]."""
    spec, made = drafter.spec, []
    assert isinstance(spec, Medusa)
    for head in range(spec.guesses):
        x = hidden
        for layer in range(spec.layers):
            y = x @ block(drafter, head, layer).T + (block(drafter, head, layer, "_bias") if spec.bias else 0)
            x = x + y / (1 + np.exp(-y))
        made.append(x @ read(drafter, f"{head}.head").T)
    return made


def block(drafter: StoredDrafter, head: int, layer: int, ending: str = "") -> np.ndarray:
    if layer:
        return read(drafter, f"{head}.blocks.{layer}{ending}")
    return drafter.read(f"{DRAFTER}blocks{ending}", (slice(head, head + 1),))[0]


@torch.no_grad()
def assert_computes(drafter: StoredDrafter, heads: Callable[[torch.Tensor], list[torch.Tensor]]) -> None:
    hidden = torch.randn((5, HIDDEN), generator=torch.Generator().manual_seed(1))
    for found, expected in zip(logits(drafter, hidden.numpy()), heads(hidden), strict=True):
        np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("stored", ["safetensors", "pt", "pt before 1.6", "prefixed"])
def test_heads_are_those_of_medusa_s_own_code(stored: str, layers: int, tmp_path: Path) -> None:
    made = own_heads(3, layers)
    state = made.state_dict()
    described(tmp_path, medusa_num_heads=3, medusa_num_layers=layers, model_type="", version="2")
    if stored == "safetensors":
        save_file(state, tmp_path / FILE)
    elif stored == "prefixed":
        save_file({f"medusa_head.{name}": tensor for name, tensor in state.items()}, tmp_path / FILE)
    else:
        torch.save(state, tmp_path / "medusa_lm_head.pt", _use_new_zipfile_serialization=stored == "pt")
    drafter = opened(tmp_path)
    assert drafter.spec == Medusa(3, layers, HIDDEN, VOCAB)
    assert_computes(drafter, lambda hidden: [head(hidden) for head in made])


@pytest.mark.parametrize("layers", [1, 2])
def test_heads_without_a_matrix_share_the_model_s(layers: int, tmp_path: Path) -> None:
    state = own_heads(4, layers, with_matrix=False).state_dict()
    save_file(state, described(tmp_path, medusa_num_heads=4, medusa_num_layers=layers) / FILE)
    drafter = opened(tmp_path)
    assert drafter.spec == Medusa(4, layers, HIDDEN, VOCAB, own_heads=False)
    for head in range(4):
        for layer in range(layers):
            linear = f"{head}.{layer}.linear"
            np.testing.assert_array_equal(block(drafter, head, layer), state[f"{linear}.weight"])
            np.testing.assert_array_equal(block(drafter, head, layer, "_bias"), state[f"{linear}.bias"])


def test_blocks_may_have_no_bias(tmp_path: Path) -> None:
    drafter = opened(write_medusa(tmp_path, "", HIDDEN, VOCAB, bias=False))
    assert drafter.spec == Medusa(3, 1, HIDDEN, VOCAB, bias=False)
    assert not any("bias" in name for name in drafter.spec.parameters())


@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("original", [False, True])
def test_heads_are_those_of_vllm(original: bool, bias: bool, prefix: str, tmp_path: Path) -> None:
    made = VllmHeads(bias=bias, original=original)
    state = {f"{prefix}{name}": tensor for name, tensor in made.state_dict().items()}
    described(tmp_path, **VLLM, original_lm_head=original, medusa_fc_bias=bias, truncated_vocab_size=VOCAB)
    save_file(state, tmp_path / "model.safetensors")
    drafter = opened(tmp_path)
    assert drafter.spec == Medusa(3, 2, HIDDEN, VOCAB, bias=bias)
    assert_computes(drafter, made)


def test_vllm_s_heads_may_be_pickled_and_the_original_head_the_first_of_them(tmp_path: Path) -> None:
    made = VllmHeads(original=True)
    state = {name.replace("lm_head.", "lm_heads.0."): tensor for name, tensor in made.state_dict().items()}
    torch.save(state, described(tmp_path, **VLLM, original_lm_head=True) / "pytorch_model.bin")
    assert_computes(opened(tmp_path), made)


def test_all_heads_are_used_of_which_the_configuration_knows_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_medusa(tmp_path, "", HIDDEN, VOCAB, heads=5)
    change(tmp_path, medusa_num_heads=2)
    assert opened(tmp_path).spec == Medusa(5, 1, HIDDEN, VOCAB)
    assert "medusa_num_heads is 2, but there are 5 heads, and all of them are used" in capsys.readouterr().err


def test_a_slice_is_that_of_the_whole(tmp_path: Path) -> None:
    drafter = opened(write_medusa(tmp_path, "", HIDDEN, VOCAB))
    for name, parameter in drafter.spec.parameters().items():
        cut = tuple(slice(size // 3, size // 3 + 1 + size // 2) for size in parameter.shape)
        whole = drafter.read(name, ())
        assert whole.shape == parameter.shape
        np.testing.assert_array_equal(drafter.read(name, cut), whole[cut])


def drop(name: str) -> Changed:
    return lambda tensors: tensors.pop(name)


def put(name: str, *shape: int, dtype: Any = np.float32) -> Changed:
    return lambda tensors: tensors.update({name: np.ones(shape, dtype)})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (drop("1.0.linear.weight"), "lacks tensor '1.0.linear.weight'"),
        (drop("0.0.linear.weight"), "lacks tensor '0.0.linear.weight'"),
        (drop("2.0.linear.bias"), "lacks tensor '2.0.linear.bias'"),
        (
            drop("0.0.linear.bias"),
            f"{FILE}: the model has no place for 2 tensors: '1.0.linear.bias', '2.0.linear.bias'",
        ),
        (drop("0.1.weight"), "lacks tensor '0.1.weight'"),
        (drop("2.1.weight"), "lacks tensor '2.1.weight'"),
        (
            put("2.1.weight", VOCAB, 32),
            f"{FILE}: tensor '2.1.weight' has shape [320, 32], the configuration says [320, 64]",
        ),
        (put("1.0.linear.bias", 1), f"{FILE}: tensor '1.0.linear.bias' has shape [1], the configuration says [64]"),
        (put("0.0.linear.weight", 8, 8, 8), "tensor '0.0.linear.weight' has shape [8, 8, 8], the configuration says"),
        (put("1.0.linear.bias", HIDDEN, dtype=np.int32), f"{FILE}: tensor '1.0.linear.bias' has type int32, supported"),
        (put("2.2.weight", VOCAB, HIDDEN), f"{FILE}: the model has no place for tensor '2.2.weight'"),
        (put("4.0.linear.weight", HIDDEN, HIDDEN), f"{FILE}: the model has no place for tensor '4.0.linear.weight'"),
        (put("0.0.linear.weight", 32, 32), "drafter reads hidden states of 32 numbers, the model's have 64"),
        (put("0.1.weight", 256, HIDDEN), "the drafter has a vocabulary of 256, the model of 320"),
        (
            lambda tensors: tensors.update({f"{i}.0.linear.weight": tensors["0.0.linear.weight"] for i in range(64)}),
            f"{FILE}: 64 heads, at most 63",
        ),
    ],
)
def test_damaged_heads_are_refused_by_name(changed: Changed, said: str, tmp_path: Path) -> None:
    write_medusa(tmp_path, "", HIDDEN, VOCAB)
    change_tensors(tmp_path / FILE, changed)
    with pytest.raises(CheckpointError) as error:
        opened(tmp_path)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"medusa_num_heads": 4}, "lacks 3 tensors: '3.0.linear.weight', '3.0.linear.bias', '3.1.weight'"),
        ({"medusa_num_heads": 0}, "medusa_num_heads must be a positive integer, got '0'"),
        ({"medusa_num_heads": 2**30}, "medusa_num_heads must be at most 63, got '1073741824'"),
        ({"medusa_num_layers": "1"}, "medusa_num_layers must be a positive integer, got '1'"),
        ({"medusa_num_layers": 2**30}, "medusa_num_layers must be at most 63"),
        ({"medusa_num_layers": 2}, "lacks "),
    ],
)
def test_a_configuration_is_refused_by_name(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_medusa(tmp_path, "", HIDDEN, VOCAB)
    change(tmp_path, **settings)
    with pytest.raises(CheckpointError) as error:
        opened(tmp_path)
    assert said in str(error.value)


def test_a_number_of_layers_is_one_unless_it_is_given(tmp_path: Path) -> None:
    write_medusa(tmp_path, "", HIDDEN, VOCAB)
    change(tmp_path, medusa_num_layers=None)
    assert opened(tmp_path).spec == Medusa(3, 1, HIDDEN, VOCAB)


@pytest.mark.parametrize(
    ("settings", "changed", "said"),
    [
        ({"truncated_vocab_size": 100}, None, "truncated_vocab_size is not supported where it is not vocab_size 320"),
        ({}, put("token_map", VOCAB, dtype=np.int64), "model.safetensors: tensor 'token_map' is not supported"),
        ({"medusa_fc_bias": True}, None, "lacks 6 tensors: 'blocks.0.layers.0.bias', "),
        ({"num_hidden_layers": 1}, None, "the model has no place for 3 tensors: 'blocks.0.layers.1.weight', "),
        ({"vocab_size": None}, None, "vocab_size is missing"),
        ({"num_heads": None}, None, "medusa_num_heads is missing"),
        ({}, drop("lm_heads.0.weight"), "lacks tensor 'lm_heads.0.weight'"),
        ({"original_lm_head": True}, None, "no place for 2 tensors: 'lm_heads.1.weight', 'lm_heads.2.weight'"),
        ({"original_lm_head": "yes"}, None, "original_lm_head must be true or false"),
    ],
)
def test_what_is_not_supported_of_vllm_s_is_refused_by_name(
    settings: dict[str, Any], changed: Changed | None, said: str, tmp_path: Path
) -> None:
    save_file(VllmHeads().state_dict(), described(tmp_path, **VLLM) / "model.safetensors")
    change(tmp_path, **settings)
    if changed:
        change_tensors(tmp_path / "model.safetensors", changed)
    with pytest.raises(CheckpointError) as error:
        opened(tmp_path)
    assert said in str(error.value)


def test_heads_must_be_there(tmp_path: Path) -> None:
    described(tmp_path, medusa_num_heads=3)
    with pytest.raises(
        CheckpointError, match=r"no medusa_lm_head\.safetensors, medusa_lm_head\.pt or model\.safetensors"
    ):
        opened(tmp_path)
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(CheckpointError, match=r"medusa_lm_head\.pt: .* not a PyTorch file of weights"):
        opened(tmp_path)

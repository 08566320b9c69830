"""MLP speculators are read as IBM's code saves them, or refused by name before a weight is read."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

from convert.drafters.stored_drafter import StoredDrafter
from convert.errors import CheckpointError
from jaxengine.architecture.drafter import MLPSpeculator
from tests.convert.drafters.opened import HIDDEN, VOCAB, change, change_tensors, opened, read
from tests.tiny_drafters import write_mlp_speculator

INNER, FILE = 48, "model.safetensors"
Changed = Callable[[dict[str, Any]], Any]
NAMES = {
    "embedding": "emb.{}.weight",
    "project": "proj.{}.weight",
    "norm": "ln.{}.weight",
    "norm_bias": "ln.{}.bias",
    "head": "head.{}.weight",
}


def write(directory: Path, **settings: Any) -> Path:
    return write_mlp_speculator(directory, "", HIDDEN, VOCAB, INNER, **settings)


def assert_read(drafter: StoredDrafter, tensors: dict[str, np.ndarray], numbers: dict[str, list[int]]) -> None:
    """Each of the numbers of each kind of parameter is the tensor of that name, and there are no others."""
    expected = {f"{i}.{kind}" for kind, each in numbers.items() for i in each}
    assert {name.removeprefix("drafter.") for name in drafter.spec.parameters()} == expected
    for kind, each in numbers.items():
        for i in each:
            np.testing.assert_array_equal(read(drafter, f"{i}.{kind}"), tensors[f"speculator.{NAMES[kind].format(i)}"])


@pytest.mark.parametrize("scale_input", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_each_parameter_is_the_tensor_of_its_name(tied: bool, scale_input: bool, tmp_path: Path) -> None:
    drafter = opened(write(tmp_path, tied=tied, scale_input=scale_input))
    assert drafter.spec == MLPSpeculator(3, INNER, HIDDEN, VOCAB, tied, scale_input)
    numbers = dict.fromkeys(NAMES, [0] if tied else [0, 1, 2]) | {"project": [0, 1] if tied else [0, 1, 2]}
    assert_read(drafter, load_file(tmp_path / FILE), numbers)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(INNER) + 0.5), nn.Parameter(torch.randn(INNER))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)) + self.bias


class Speculator(nn.Module):
    """A tied speculator of three guesses. Lists repeat what is shared, so `state_dict` has it under every number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        again = nn.Linear(INNER, INNER, bias=False)
        self.emb = nn.ModuleList([nn.Embedding(VOCAB, INNER)] * 3)
        self.proj = nn.ModuleList([nn.Linear(HIDDEN, INNER, bias=False), again, again])
        self.head = nn.ModuleList([nn.Linear(INNER, VOCAB, bias=False)] * 3)
        self.ln = nn.ModuleList([Norm()] * 3)

    @torch.no_grad()
    def forward(self, state: torch.Tensor, token: torch.Tensor) -> list[torch.Tensor]:
        made, weight = [], 0.5 ** (0.5 / 3)
        for emb, proj, head, ln in zip(self.emb, self.proj, self.head, self.ln, strict=True):
            z = emb(token) * math.sqrt((1 - weight**2) * INNER / 2)
            state = nn.functional.gelu(ln(proj(state) * weight + z))
            made.append(head(state).argmax(-1))
            token = made[-1]
        return made


def guesses(drafter: StoredDrafter, state: np.ndarray, token: np.ndarray) -> list[np.ndarray]:
    """By the formula of `MLPSpeculator`, of a tied one."""
    made, a = [], 0.5 ** (0.5 / 3)
    b = math.sqrt((1 - a**2) * INNER / 2)
    for i in range(3):
        x = state @ read(drafter, f"{min(i, 1)}.project").T * a + read(drafter, "0.embedding")[token] * b
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * read(drafter, "0.norm") + read(drafter, "0.norm_bias")
        state = x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
        token = (state @ read(drafter, "0.head").T).argmax(-1)
        made.append(token)
    return made


@pytest.mark.parametrize("prefix", ["", "speculator."])
def test_a_tied_speculator_that_holds_its_copies_guesses_as_its_own_module(prefix: str, tmp_path: Path) -> None:
    module = Speculator()
    write(tmp_path, tied=True)
    (tmp_path / FILE).unlink()
    torch.save(
        {f"{prefix}{name}": tensor for name, tensor in module.state_dict().items()}, tmp_path / "pytorch_model.bin"
    )
    generator = torch.Generator().manual_seed(1)
    state = torch.randn((20, HIDDEN), generator=generator)
    token = torch.randint(VOCAB, (20,), generator=generator)
    expected = [each.numpy() for each in module(state, token)]
    np.testing.assert_array_equal(guesses(opened(tmp_path), state.numpy(), token.numpy()), expected)


def test_an_inner_size_of_none_is_that_of_the_hidden_states(tmp_path: Path) -> None:
    write_mlp_speculator(tmp_path, "", HIDDEN, VOCAB, HIDDEN)
    change(tmp_path, inner_dim=0)
    assert opened(tmp_path).spec == MLPSpeculator(3, HIDDEN, HIDDEN, VOCAB)


def test_several_files_with_an_index_are_one_speculator(tmp_path: Path) -> None:
    tensors = load_file(write(tmp_path) / FILE)
    (tmp_path / FILE).unlink()
    placed = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for file in set(placed.values()):
        save_file({name: tensors[name] for name in tensors if placed[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    assert_read(opened(tmp_path), tensors, {kind: [0, 1, 2] for kind in NAMES})


def copied(name: str, first: str, factor: float = 1.0) -> Changed:
    return lambda tensors: tensors.update({f"speculator.{name}": factor * tensors[f"speculator.{first}"]})


def test_copies_of_what_is_shared_may_be_stored_but_must_not_differ(tmp_path: Path) -> None:
    spec = opened(write(tmp_path, tied=True)).spec
    for name, first in (
        ("emb.2.weight", "emb.0.weight"),
        ("proj.2.weight", "proj.1.weight"),
        ("ln.1.bias", "ln.0.bias"),
    ):
        change_tensors(tmp_path / FILE, copied(name, first))
        assert opened(tmp_path).spec == spec
        change_tensors(tmp_path / FILE, copied(name, first, 1.01))
        with pytest.raises(CheckpointError) as error:
            opened(tmp_path)
        said = f"{FILE}: tensor 'speculator.{name}' differs from 'speculator.{first}', and with tie_weights must not"
        assert said in str(error.value)
        change_tensors(tmp_path / FILE, copied(name, first))


def drop(name: str) -> Changed:
    return lambda tensors: tensors.pop(f"speculator.{name}")


def put(name: str, *shape: int, dtype: Any = np.float32) -> Changed:
    return lambda tensors: tensors.update({f"speculator.{name}": np.ones(shape, dtype)})


@pytest.mark.parametrize(
    ("tied", "changed", "said"),
    [
        (False, drop("emb.2.weight"), "lacks tensor 'speculator.emb.2.weight'"),
        (False, drop("ln.0.bias"), "lacks tensor 'speculator.ln.0.bias'"),
        (True, drop("proj.1.weight"), "lacks tensor 'speculator.proj.1.weight'"),
        (
            True,
            put("emb.3.weight", VOCAB, INNER),
            f"{FILE}: the model has no place for tensor 'speculator.emb.3.weight'",
        ),
        (
            False,
            put("emb.3.weight", VOCAB, INNER),
            f"{FILE}: the model has no place for tensor 'speculator.emb.3.weight'",
        ),
        (
            False,
            put("proj.1.weight", INNER, HIDDEN),
            "'speculator.proj.1.weight' has shape [48, 64], the configuration",
        ),
        (
            False,
            put("head.1.weight", VOCAB, INNER, dtype=np.int8),
            "'speculator.head.1.weight' has type int8, supported",
        ),
        (
            True,
            put("ln.0.weight", 1),
            f"{FILE}: tensor 'speculator.ln.0.weight' has shape [1], the configuration says [48]",
        ),
    ],
)
def test_damaged_tensors_are_refused_by_name(tied: bool, changed: Changed, said: str, tmp_path: Path) -> None:
    write(tmp_path, tied=tied)
    change_tensors(tmp_path / FILE, changed)
    with pytest.raises(CheckpointError) as error:
        opened(tmp_path)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_predict": None}, "n_predict is missing"),
        ({"n_predict": 2**30}, "n_predict must be at most 63, got '1073741824'"),
        ({"n_predict": 4}, "lacks 5 tensors: "),
        ({"n_predict": 2}, "the model has no place for 5 tensors: "),
        ({"inner_dim": -1}, "inner_dim must be an integer, not negative"),
        ({"inner_dim": 32}, "has shape [48, 64], the configuration says [32, 64]"),
        ({"emb_dim": 128}, "config.json: the drafter reads hidden states of 128 numbers, the model's have 64"),
        ({"vocab_size": 321}, "config.json: the drafter has a vocabulary of 321, the model of 320"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"tie_weights": "no"}, "tie_weights must be true or false"),
        ({"tie_weights": True}, "differs from 'speculator."),
        ({"scale_input": 1}, "scale_input must be true or false"),
    ],
)
def test_a_configuration_is_refused_by_name(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    write(tmp_path)
    change(tmp_path, **settings)
    with pytest.raises(CheckpointError) as error:
        opened(tmp_path)
    assert said in str(error.value)


def test_weights_must_be_there(tmp_path: Path) -> None:
    (write(tmp_path) / FILE).unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors or its index"):
        opened(tmp_path)

"""Key/value heads copied for more devices than there are heads: the same model, cut another way."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from convert.source import open_model
from jaxengine.architecture.adaptation import Adaptable
from jaxengine.architecture.parameters import ParameterSource, parameter_table
from jaxengine.weights.kv_heads import ReplicatedSource, replicate_adapters, replicate_heads
from tests.tiny import write_tiny


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ParameterSource:
    """Two key/value heads, four queries each, biases everywhere."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8}
    return open_model(str(write_tiny(tmp_path_factory.mktemp("tiny"), "llama_bias_hd", **heads))).source


@pytest.mark.parametrize("name", ["qkv", "qkv_bias"])
def test_a_copy_has_its_share_of_the_queries_and_the_whole_key_and_value(source: ParameterSource, name: str) -> None:
    name = f"layers.0.{name}"
    once, twice = source.read(name, ()), ReplicatedSource(source, 2).read(name, ())
    assert twice.shape[:2] == (4, 4)  # two queries, key, value
    for head in range(4):
        original, share = once[head // 2], 2 * (head % 2)
        np.testing.assert_array_equal(twice[head], np.concatenate([original[share : share + 2], original[4:]]))


def test_the_output_projection_is_the_same_matrix(source: ParameterSource) -> None:
    once, twice = source.read("layers.0.out", ()), ReplicatedSource(source, 2).read("layers.0.out", ())
    np.testing.assert_array_equal(once.reshape(64, -1), twice.reshape(64, -1))


def test_slices_equal_the_whole(source: ParameterSource) -> None:
    replicated = ReplicatedSource(source, 4)
    for name, parameter in parameter_table(replicated.spec).items():
        whole = replicated.read(name, ())
        assert whole.shape == parameter.shape
        for axis, size in enumerate(parameter.shape):
            index = (*(slice(None),) * axis, slice(size // 2, size))
            np.testing.assert_array_equal(replicated.read(name, index), whole[index])


@pytest.mark.parametrize(("devices", "heads"), [(1, 2), (2, 2), (4, 4), (8, 8)])
def test_heads_are_copied_only_as_far_as_needed(source: ParameterSource, devices: int, heads: int) -> None:
    assert replicate_heads(source, devices).spec.num_kv_heads == heads


@pytest.mark.parametrize("devices", [3, 16])
def test_what_cannot_be_copied_evenly_is_left_to_be_refused(source: ParameterSource, devices: int) -> None:
    assert replicate_heads(source, devices) is source  # 3 is no multiple of 2 heads, 16 devices exceed 8 queries


def test_adapters_of_heads_that_are_not_copied_stay(zoo: Callable[[str], Path]) -> None:
    """Those of linear attention."""
    model = open_model(str(zoo("qwen3_5")))
    assert model.adapters
    before = model.adapters.targets
    after = replicate_adapters(model.adapters, replicate_heads(model.source, 4)).targets
    changed = {name for name in before if before[name] != after[name]}
    assert {name.rsplit(".")[-1] for name in changed} == {"qkv"}
    rates = [each for name, each in after.items() if name.endswith("linear_rates")]
    assert rates and set(rates) == {Adaptable((0, 0, 1, 1), axis=1)}

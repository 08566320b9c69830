"""What the machines of a group compare before they start: all that would make a wrong text, and nothing else."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from jaxengine.architecture.parameters import parameter_table
from jaxengine.cache.limits import Limits
from jaxengine.executor.executable_store import program_flags
from jaxengine.options.adapters import NamedAdapter
from jaxengine.options.table import EngineOptions
from jaxengine.startup import agreement
from tests.shapes import LLAMA_8B

TABLE = parameter_table(dataclasses.replace(LLAMA_8B, hidden_size=64, ffn_size=128, vocab_size=96))


class Weights:
    """Random ones of many layers, which a parameter may lack."""

    def __init__(self, changed: str = "") -> None:
        self.changed = changed

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        shape = TABLE[name].shape
        values = np.random.default_rng(len(name)).standard_normal(shape)
        return (values + 1e-3 * (name == self.changed))[index]


@pytest.mark.parametrize("name", list(TABLE)[::7] + list(TABLE)[-3:])
def test_other_weights_of_any_matrix_are_noticed(name: str) -> None:
    assert agreement.weights_digest(TABLE, Weights(name).read) != agreement.weights_digest(TABLE, Weights().read)


def test_the_same_weights_are_the_same() -> None:
    assert agreement.weights_digest(TABLE, Weights().read) == agreement.weights_digest(TABLE, Weights().read)


@pytest.mark.parametrize("options", [{}, {"speculate": 3, "max_loras": 2, "dtype": "float16", "tensor_parallel": 0}])
def test_what_a_leader_was_started_with_arrives(options: dict[str, Any]) -> None:
    given = EngineOptions(**options)
    adapters = [NamedAdapter("sql", "/data/sql")]
    told = agreement.welcome(7, given, adapters)
    assert agreement.options_of(told) == given and agreement.adapters_of(told) == adapters and told["port"] == 7


def test_sizes_arrive() -> None:
    limits = Limits(512, (1, 2), (16, 64), verify_buckets=(4,), windows=(0, 128))
    plan = agreement.plan(limits, 99, "mean")
    assert agreement.limits_of(plan) == limits and (plan["pages"], plan["pooling"]) == (99, "mean")


def test_options_that_do_not_count_are_named() -> None:
    own = EngineOptions(max_total_tokens=99, dtype="float16")
    assert agreement.overruled(own, EngineOptions(dtype="float16")) == [
        "--max-total-tokens 99 has no effect here: on machine 0 it is None"
    ]


def test_flags_that_change_programs_are_compared_and_where_dumps_go_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before = program_flags()
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/here --xla_dump_hlo_as_text")
    assert program_flags() == {name: each for name, each in before.items() if name != "XLA_FLAGS"}
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/here --xla_fast=true")
    monkeypatch.setenv("JAX_DEFAULT_MATMUL_PRECISION", "highest")
    told = program_flags()
    assert told["XLA_FLAGS"] == "--xla_fast=true" and told["JAX_DEFAULT_MATMUL_PRECISION"] == "highest"

"""`--rope-scaling`: the specification is the one of a checkpoint that says so itself, and the arrays stay."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from convert.config.rope_override import stretch
from convert.errors import USAGE, CheckpointError
from convert.mapping.composition import SourceWithSpec
from convert.source import open_model
from jaxengine.spec.model import LayerKind
from jaxengine.spec.parameters import ParameterSource
from tests.tiny import write_tiny


def opened(directory: Path, name: str, **overrides: object) -> ParameterSource:
    return open_model(str(write_tiny(directory, name, **overrides))).source


def test_linear_and_dynamic_are_as_if_the_checkpoint_said_so(tmp_path: Path) -> None:
    plain = opened(tmp_path / "a", "llama")
    linear = opened(tmp_path, "llama_linear").spec
    assert stretch(plain, "linear", 4.0).spec.kinds == linear.kinds
    assert stretch(plain, "linear", 4.0).spec.max_positions == 4 * plain.spec.max_positions
    short = opened(tmp_path / "b", "llama", max_position_embeddings=16)
    assert stretch(short, "dynamic", 2.0).spec == opened(tmp_path, "llama_dynamic").spec


def test_the_checkpoints_own_scaling_is_replaced(tmp_path: Path) -> None:
    yarn = opened(tmp_path, "llama_yarn")
    [kind] = stretch(yarn, "linear", 2.0).spec.kinds
    assert kind.rope is not None and (kind.rope.kind, kind.rope.factor) == ("linear", 2.0)
    assert stretch(yarn, "linear", 2.0).spec.max_positions == 2 * 16


def test_arrays_are_the_sources(tmp_path: Path) -> None:
    source = opened(tmp_path, "llama")
    same = stretch(source, "linear", 2.0)
    assert same.dtype == source.dtype
    assert np.array_equal(same.read("embedding", (slice(0, 3),)), source.read("embedding", (slice(0, 3),)))


def test_a_model_without_rotary_positions_is_refused(tmp_path: Path) -> None:
    source = opened(tmp_path, "llama")
    learned = SourceWithSpec(source, replace(source.spec, kinds=(LayerKind(rope=None),)))
    with pytest.raises(CheckpointError, match="not rotary") as refused:
        stretch(learned, "linear", 2.0)
    assert refused.value.exit_code == USAGE

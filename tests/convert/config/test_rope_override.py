"""`--rope-scaling`: the specification equals that of a checkpoint with such scaling, and parameters stay the same."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from convert.config.rope_override import override_rope
from convert.errors import USAGE, CheckpointError
from convert.source import open_model, with_rope
from jaxengine.architecture.model import LayerKind, ModelSpec
from tests.tiny import write_tiny


def spec_of(directory: Path, name: str, **overrides: object) -> ModelSpec:
    return open_model(str(write_tiny(directory, name, **overrides))).source.spec


def test_linear_and_dynamic_are_as_if_the_checkpoint_said_so(tmp_path: Path) -> None:
    plain = spec_of(tmp_path / "a", "llama")
    linear = spec_of(tmp_path, "llama_linear")
    assert override_rope(plain, "linear", 4.0).kinds == linear.kinds
    assert override_rope(plain, "linear", 4.0).max_positions == 4 * plain.max_positions
    short = spec_of(tmp_path / "b", "llama", max_position_embeddings=16)
    assert override_rope(short, "dynamic", 2.0) == spec_of(tmp_path, "llama_dynamic")


def test_the_checkpoints_own_scaling_is_replaced(tmp_path: Path) -> None:
    overridden = override_rope(spec_of(tmp_path, "llama_yarn"), "linear", 2.0)
    [kind] = overridden.kinds
    assert kind.rope is not None and (kind.rope.kind, kind.rope.factor) == ("linear", 2.0)
    assert overridden.max_positions == 2 * 16


def test_parameters_stay_the_same(tmp_path: Path) -> None:
    model = open_model(str(write_tiny(tmp_path, "llama")))
    source, same = model.source, with_rope(model, "linear", 2.0).source
    assert same.spec == override_rope(source.spec, "linear", 2.0)
    assert same.dtype == source.dtype
    assert np.array_equal(same.read("embedding", (slice(0, 3),)), source.read("embedding", (slice(0, 3),)))


def test_a_model_without_rotary_positions_is_refused(tmp_path: Path) -> None:
    learned = replace(spec_of(tmp_path, "llama"), kinds=(LayerKind(rope=None),))
    with pytest.raises(CheckpointError, match="not rotary") as refused:
        override_rope(learned, "linear", 2.0)
    assert refused.value.exit_code == USAGE

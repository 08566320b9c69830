"""gpt-oss' experts are what transformers makes of them, but turned: a matrix [experts, out, in] under its own name."""

from typing import Any

import numpy as np
import pytest

from convert.errors import CheckpointError
from convert.formats.tensors import Tensors
from convert.quantized.mxfp4 import FORMAT
from convert.quantized.tensors import with_weights
from tests.convert.quantized.goldens import GPT_OSS, Arrays

NAME = "model.layers.0.mlp.experts.gate_up_proj"
BIAS = {f"{NAME}_bias": np.zeros((3, 10), np.float32)}


def opened(**changes: Any) -> Tensors:
    parts = {suffix.removeprefix(".gate_up_proj"): each for suffix, each in GPT_OSS.parts.items()} | changes
    arrays = {f"{NAME}{suffix}": each for suffix, each in parts.items() if each is not None}
    return with_weights(GPT_OSS.configuration(), Arrays(arrays | BIAS))


def test_the_experts_are_those_of_transformers() -> None:
    tensors, theirs = opened(), GPT_OSS.dense.astype(np.float32).swapaxes(1, 2)
    assert sorted(tensors) == [NAME, f"{NAME}_bias"]
    assert tensors.shape(NAME) == theirs.shape == (3, 10, 64)
    np.testing.assert_array_equal(tensors.read(NAME, theirs.shape, ()), theirs)
    part = (slice(1, 2), slice(3, 7), slice(5, 40))
    np.testing.assert_array_equal(tensors.read(NAME, theirs.shape, part), theirs[part])


def test_the_experts_are_read_as_they_are_stored() -> None:
    matrix, blocks = opened().quantized(NAME), GPT_OSS.parts[".gate_up_proj_blocks"]
    assert matrix is not None and matrix.format == FORMAT and matrix.words is not None
    words = matrix.words(slice(0, 30), slice(0, 8))
    np.testing.assert_array_equal(words, blocks.reshape(30, 32).view(np.uint32))
    values = matrix.component("values", (3, 5, 2, 64), (slice(1, 3), slice(0, 5), slice(1, 2)))
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(3, 5, 2, 64)  # the low half first
    np.testing.assert_array_equal(values, codes[1:, :, 1:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_scales": None}, f"lacks tensor '{NAME}_scales'"),
        ({"_scales": np.full((3, 10, 2), 255, np.uint8)}, "_scales' has a scale that is not a number"),
        ({"_scales": np.zeros((3, 10, 3), np.uint8)}, r"_scales' has shape \[3, 10, 3\], must have \[3, 10, 2\]"),
        ({"_scales": np.zeros((3, 10, 2), np.float32)}, "_scales' has type float32, must have uint8"),
        ({"_blocks": np.zeros((3, 10, 2, 8), np.uint8)}, r"_blocks' has shape .*, must have \[3, 10, 2, 16\]"),
        ({"_blocks": np.zeros((30, 2, 16), np.uint8)}, r"_blocks' has shape \[30, 2, 16\], must have 4 axes"),
        ({"_blocks": None}, "says mxfp4, but no tensor ends in _blocks"),
        ({"": np.zeros((3, 64, 10), np.float32)}, f"tensor '{NAME}' is beside a quantised matrix"),
    ],
)
def test_damaged_experts_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        opened(**changes)

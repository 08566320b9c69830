"""Scales that weights are divided by, as GPTQModel stores them: the same tensors elsewhere are multiplied."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from convert.config.config import Config
from convert.errors import CheckpointError
from convert.formats.tensors import Tensors, whole
from convert.quantized.tensors import with_weights
from tests.convert.quantized.goldens import MODULE, WEIGHT, Arrays

LARGEST = 448
PARTS = {"tensor": (32, 96), "row": (1, 96), "block": (16, 32)}  # outputs and inputs that share a scale
STORED: dict[str, tuple[int, ...]] = {"tensor": (), "row": (32,), "block": (2, 3)}  # shapes
RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.normal(0, 0.02, (32, 96)).astype(np.float32)


def inverse_of(method: str) -> np.ndarray:
    """f32 [parts of the outputs, parts of the inputs]."""
    tall, wide = PARTS[method]
    largest = np.abs(MATRIX.reshape(32 // tall, tall, 96 // wide, wide)).max((1, 3))
    return np.float32(LARGEST) / largest


def opened(method: str, stored: np.ndarray, codes: np.ndarray, **settings: Any) -> Tensors:
    config = {"quant_method": "fp8", "method": "fp8", "bits": 8, "format": "float8_e4m3fn"}
    config |= {"weight_scale_method": method, "weight_scale_semantics": "inverse", **settings}
    config |= {"weight_block_size": list(PARTS[method])} if method == "block" else {}
    arrays = {WEIGHT: codes, f"{MODULE}.weight_scale_inv": stored}
    return with_weights(Config({"quantization_config": config}, "config.json"), Arrays(arrays))


@pytest.mark.parametrize("method", PARTS)
def test_weights_are_divided_by_scales_that_are_inverse(method: str) -> None:
    inverse = inverse_of(method)
    of_weights = np.kron(inverse, np.ones(PARTS[method], np.float32))
    codes = (MATRIX * of_weights).astype(ml_dtypes.float8_e4m3fn)
    found = whole(opened(method, inverse.reshape(STORED[method]), codes), WEIGHT)
    np.testing.assert_allclose(found, codes.astype(np.float32) / of_weights, rtol=2e-7)
    np.testing.assert_allclose(found, MATRIX, rtol=0.07, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-39])
def test_an_inverse_of_no_finite_scale_is_refused(value: float) -> None:
    codes, stored = MATRIX.astype(ml_dtypes.float8_e4m3fn), np.full(32, value, np.float32)
    with pytest.raises(CheckpointError, match="weight_scale_inv' has a scale of 0, or next to it, which weights are"):
        opened("row", stored, codes)

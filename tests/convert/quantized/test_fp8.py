"""Scales that weights are divided by, as GPTQModel stores them: the same tensors elsewhere are multiplied. And scales
that are powers of two, as transformers stores them with `scale_fmt` "ue8m0".
"""

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


def in_powers(scales: np.ndarray) -> Tensors:
    config = {"quant_method": "fp8", "weight_block_size": list(PARTS["block"]), "scale_fmt": "ue8m0"}
    arrays = {WEIGHT: MATRIX.astype(ml_dtypes.float8_e4m3fn), f"{MODULE}.weight_scale_inv": scales}
    return with_weights(Config({"quantization_config": config}, "config.json"), Arrays(arrays))


def test_scales_of_blocks_may_be_powers_of_two_in_a_byte_each() -> None:
    powers = np.ldexp(np.float32(1), [[-127, -9, 0], [1, 3, 118]]).astype(np.float32)
    found = whole(in_powers(powers.astype(ml_dtypes.float8_e8m0fnu)), WEIGHT)
    codes = MATRIX.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(found, codes * np.kron(powers, np.ones(PARTS["block"], np.float32)))


def test_a_power_that_is_no_number_is_refused() -> None:
    with pytest.raises(CheckpointError, match="weight_scale_inv' has a scale that is not finite"):
        in_powers(np.full((2, 3), 255, np.uint8).view(ml_dtypes.float8_e8m0fnu))

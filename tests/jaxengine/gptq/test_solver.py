"""A matrix rounded by GPTQ: the paper's codes, and products that lose less than those of the nearest codes."""

from dataclasses import asdict

import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.gptq.solver import Rounded, Settings, round_matrix
from tests.jaxengine.gptq.reference import rounded

TOKENS = 600
CASES = {
    "4 bits": (96, Settings(group=32)),
    "a smaller last group": (80, Settings(group=32)),
    "one group, of several blocks": (200, Settings(bits=3, group=-1)),
    "groups of several blocks": (300, Settings(bits=8, group=256)),
    "a group larger than the matrix": (48, Settings(group=128)),
    "order of activation": (96, Settings(group=16, by_activation=True)),
    "order of activation, a smaller last group": (150, Settings(bits=2, group=64, by_activation=True)),
}


def problem(inputs: int, outputs: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A weight [out, in], and the Hessian of inputs that depend on each other and differ in size."""
    random = np.random.default_rng(seed)
    mixed = random.normal(size=(TOKENS, inputs)) @ (0.3 * random.normal(size=(inputs, inputs)) + np.eye(inputs))
    mixed *= random.uniform(0.2, 3, inputs)
    return random.normal(size=(outputs, inputs)).astype(np.float32), (2 / TOKENS * mixed.T @ mixed).astype(np.float32)


def solved(weight: np.ndarray, hessian: np.ndarray, settings: Settings) -> Rounded:
    return round_matrix(jnp.asarray(weight), jnp.asarray(hessian), settings)


def lost(weight: np.ndarray, hessian: np.ndarray, made: Rounded, settings: Settings) -> float:
    """The squared error of products, as a fraction."""
    loss, whole = np.asarray(made.dense(settings)).astype(np.float64) - weight, weight.astype(np.float64)
    return float(np.vdot(loss @ hessian, loss) / np.vdot(whole @ hessian, whole))


@pytest.mark.parametrize("case", CASES)
def test_codes_scales_and_groups_are_those_of_the_paper(case: str) -> None:
    inputs, settings = CASES[case]
    weight, hessian = problem(inputs)
    made, fields = solved(weight, hessian, settings), asdict(settings)
    codes, scales, groups = rounded(weight, hessian, **fields)
    np.testing.assert_array_equal(made.codes, codes)
    np.testing.assert_array_equal(np.asarray(made.scales, np.float64), scales)
    np.testing.assert_array_equal(made.groups, groups)


@pytest.mark.parametrize("case", CASES)
def test_products_lose_less_than_with_the_nearest_codes(case: str) -> None:
    inputs, settings = CASES[case]
    weight, hessian = problem(inputs)
    made = solved(weight, hessian, settings)
    nearest = solved(weight, np.eye(inputs, dtype=np.float32), settings)  # independent inputs: nothing to make up for
    error = lost(weight, hessian, made, settings)
    assert error < 0.6 * lost(weight, hessian, nearest, settings)
    assert float(made.error) == pytest.approx(error, rel=1e-2)


def test_independent_inputs_are_rounded_to_the_nearest_code() -> None:
    weight, _ = problem(64)
    made = solved(weight, np.eye(64, dtype=np.float32), Settings(group=32))
    scales = np.asarray(made.scales, np.float32)[:, np.arange(64) // 32]
    np.testing.assert_array_equal(made.codes, np.rint(weight / scales).clip(-8, 7) + 8)


def test_weights_of_zero_and_inputs_that_never_come_do_no_harm() -> None:
    weight, hessian = problem(64)
    weight[:, :32] = 0
    weight[3] = 0
    hessian[40:44] = hessian[:, 40:44] = 0
    made = solved(weight, hessian, Settings(group=32))
    assert np.isfinite(np.asarray(made.dense(Settings()))).all()
    np.testing.assert_array_equal(made.dense(Settings())[:, :32], 0)
    unseen = np.abs(np.asarray(made.dense(Settings()))[:, 40:44] - weight[:, 40:44])
    assert (unseen <= np.abs(weight[:, 32:]).max(1, keepdims=True) / 7).all()  # rounded, not dropped
    no_inputs = solved(weight, np.zeros((64, 64), np.float32), Settings(group=32))
    np.testing.assert_array_equal(
        no_inputs.codes, solved(weight, np.eye(64, dtype=np.float32), Settings(group=32)).codes
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 5}, "bits must be one of 2, 3, 4, 8, got 5"),
        ({"group": 100}, "groupsize must be one of -1, 16, 32, 64, 128, 256, 512, 1024, got 100"),
        ({"damping": 0.0}, "percdamp must be between 0 and 1, got 0.0"),
    ],
)
def test_settings_that_readers_do_not_know_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        Settings(**fields)  # type: ignore[arg-type]

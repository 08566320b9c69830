"""The exact GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415), of operations that kernels have too."""

import math

import jax
import jax.numpy as jnp
from jax import Array

# erf(x) ~ x P(x^2) / Q(x^2) for |x| up to BEYOND, where it is 1 in f32; highest powers first. Coefficients of Eigen's
# and XLA's `erf` in f32.
BEYOND = 3.7439211627767994
P = (0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861, 0.18520832239976145, 1.128379143519084)
Q = (
    *(-1.1791602954361697e-7, 2.3547966471313185e-5, 0.0010179625278914885, 0.014070470171167667),
    *(0.11098505178285362, 0.49746925110067538, 1.0),
)


def gelu(x: Array) -> Array:
    """x times the share of a normal distribution below it, computed in f32, in the dtype of x. Off by up to 1e-6."""
    wide = x.astype(jnp.float32)
    return (0.5 * wide * (1 + erf(wide * math.sqrt(0.5)))).astype(x.dtype)


def erf(x: Array) -> Array:
    """f32. Kernels have no `jax.lax.erf`."""
    x = jax.lax.clamp(jnp.float32(-BEYOND), x, jnp.float32(BEYOND))
    square = x * x
    return x * _polynomial(P, square) / _polynomial(Q, square)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """By Horner's rule."""
    total = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total

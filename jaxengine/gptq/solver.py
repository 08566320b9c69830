"""GPTQ (Frantar et al. 2022, arXiv 2210.17323): a matrix rounded so that its products change as little as possible.

Columns, one input each, are rounded one after the other, and those still to come take up what each one lost. With the
Hessian H of the squared error of the products, and U upper triangular with H⁻¹ = UᵀU, rounding column i to q changes
each later column j by

    w[:, j] -= (w[:, i] - q) / U[i, i] · U[i, j]

Columns are rounded in blocks: within one the changes are made at once, behind it in one product. A group's scale is
chosen when the columns before it are done. Codes are symmetric around 0, as TGI's command has them.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular

BLOCK = 128  # columns
BITS = (2, 3, 4, 8)
WHOLE = -1  # group size: all inputs of an output channel share a scale
GROUPS = (WHOLE, 16, 32, 64, 128, 256, 512, 1024)
SMALLEST = 2.0**-24  # scale: the smallest number that f16 holds


@dataclass(frozen=True)
class Settings:
    """
    bits: of a code.
    group: how many inputs share a scale; the last group may be smaller; -1 for all inputs.
    damping: what is added to the Hessian's diagonal, as a fraction of its mean.
    by_activation: inputs are rounded, and grouped, in order of their Hessian's diagonal, the largest first.

    Raises:
        ValueError: a value that readers of the format do not know.
    """

    bits: int = 4
    group: int = 128
    damping: float = 0.01
    by_activation: bool = False

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"bits must be one of {', '.join(map(str, BITS))}, got {self.bits}")
        if self.group not in GROUPS:
            raise ValueError(f"groupsize must be one of {', '.join(map(str, GROUPS))}, got {self.group}")
        if not 0 < self.damping < 1:
            raise ValueError(f"percdamp must be between 0 and 1, got {self.damping}")

    @property
    def middle(self) -> int:
        """The code of 0."""
        return 1 << (self.bits - 1)


class Rounded(NamedTuple):
    """A matrix in codes: w[o, i] = (codes[o, i] - middle) · scales[o, groups[i]]."""

    codes: Array  # u8 [out, in]
    scales: Array  # f16 [out, groups]
    groups: Array  # i32 [in]
    error: Array  # f32 []: squared error of the products, as a fraction of the squared products

    def dense(self, settings: Settings) -> Array:
        """f32 [out, in]."""
        scales = self.scales.astype(jnp.float32)[:, self.groups]
        return (self.codes.astype(jnp.float32) - settings.middle) * scales


class _Progress(NamedTuple):
    weight: Array  # f32 [in, out]; rows that are done hold what their codes stand for
    codes: Array  # u8 [in, out]
    scales: Array  # f32 [groups, out]


@partial(jax.jit, static_argnames="settings")
def round_matrix(weight: Array, hessian: Array, settings: Settings) -> Rounded:
    """Round `weight`, f32 [out, in].

    Args:
        hessian: f32 [in, in], 2/n Σ x xᵀ over n inputs x; any multiple of it will do.
    """
    outputs, inputs = weight.shape
    order = jnp.argsort(-jnp.diag(hessian)) if settings.by_activation else jnp.arange(inputs)
    block, group = _sizes(inputs, settings)
    unit = block if settings.group == WHOLE else group
    padding = -inputs % unit  # inputs that are always 0 with weights of 0 change nothing
    ordered = jnp.pad(weight[:, order].T, ((0, padding), (0, 0)))  # [in, out]
    upper = _inverse_factor(hessian[jnp.ix_(order, order)], settings.damping)
    upper = jax.scipy.linalg.block_diag(upper, jnp.eye(padding))

    groups = -(-inputs // group)
    start = _Progress(ordered, jnp.zeros(ordered.shape, jnp.uint8), jnp.zeros((groups, outputs)))
    advance = partial(_round_block, upper=upper, block=block, group=group, settings=settings)
    done = jax.lax.fori_loop(0, len(ordered) // block, advance, start)

    back = jnp.argsort(order)
    loss = done.weight[:inputs][back].T - weight
    error = _of_products(loss, hessian) / jnp.maximum(_of_products(weight, hessian), SMALLEST)
    of_inputs = (back // group).astype(jnp.int32)
    return Rounded(done.codes[:inputs][back].T, done.scales.T.astype(jnp.float16), of_inputs, error)


def _sizes(inputs: int, settings: Settings) -> tuple[int, int]:
    """Columns of a block, and of a group. A block never spans two groups."""
    if settings.group == WHOLE:
        return BLOCK, inputs
    return min(BLOCK, settings.group), settings.group


def _inverse_factor(hessian: Array, damping: float) -> Array:
    """U, upper triangular, with UᵀU = H⁻¹ of the damped `hessian`: the inverse of R in H = R Rᵀ.

    Cholesky's algorithm from the last input to the first gives R at once, without H⁻¹ in between.
    """
    mean = jnp.diag(hessian).mean()
    damped = hessian + jnp.eye(len(hessian)) * jnp.where(mean > 0, damping * mean, 1)
    backward = jnp.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]  # R
    return solve_triangular(backward, jnp.eye(len(hessian)))


def _round_block(
    number: Array, progress: _Progress, *, upper: Array, block: int, group: int, settings: Settings
) -> _Progress:
    """Round block `number` of the columns, which are rows here."""
    first = number * block
    weight, codes, scales = progress
    index = first // group
    whole = min(group, len(weight))
    of_group = jax.lax.dynamic_slice_in_dim(weight, index * group, whole)
    scale = jnp.where(first % group == 0, _scale(of_group, settings), scales[index])  # [out]
    of_block = jax.lax.dynamic_slice_in_dim(upper, first, block)  # [block, in]
    own = jax.lax.dynamic_slice_in_dim(of_block, first, block, axis=1)

    def round_row(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, errors = state
        rounded = _codes(rows[i], scale, settings) * scale
        error = (rows[i] - rounded) / own[i, i]
        return rows - own[i][:, None] * error, errors.at[i].set(error)  # own[i] is 0 in front of i

    rows = jax.lax.dynamic_slice_in_dim(weight, first, block)
    rows, errors = jax.lax.fori_loop(0, block, round_row, (rows, jnp.zeros_like(rows)))
    behind = jnp.where(jnp.arange(upper.shape[1]) >= first + block, of_block, 0)
    weight = jax.lax.dynamic_update_slice_in_dim(weight - behind.T @ errors, rows, first, 0)
    made = (_codes(rows, scale, settings) + settings.middle).astype(jnp.uint8)
    return _Progress(weight, jax.lax.dynamic_update_slice_in_dim(codes, made, first, 0), scales.at[index].set(scale))


def _scale(rows: Array, settings: Settings) -> Array:
    """f32 [out] that f16 holds: the range of codes is twice the largest magnitude in `rows` [group, out]."""
    largest = jnp.abs(rows).max(0)
    scale = jnp.where(largest > 0, largest, 1) * (2 / (2**settings.bits - 1))
    return jnp.maximum(scale.astype(jnp.float16).astype(jnp.float32), SMALLEST)


def _codes(values: Array, scale: Array, settings: Settings) -> Array:
    return jnp.rint(values / scale).clip(-settings.middle, settings.middle - 1)


def _of_products(weight: Array, hessian: Array) -> Array:
    """Σ (weight · x)² over the inputs of `hessian`, in its unit."""
    return jnp.vdot(weight @ hessian, weight)

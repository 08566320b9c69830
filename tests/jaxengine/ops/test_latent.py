"""Attention over latents: what is cached once is both keys and values. Of the reference against the definition, and of
the interpreted kernels against the reference.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from jaxengine.ops import AttentionBias, AttentionSpec, reference, triton
from jaxengine.ops.triton.latent import heads_of_tile
from tests.jaxengine.ops.steps import LAYER, Shape, Step, among_layers, dense_attention, random_bias, random_step

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}
RANK, REST = 32, 16
PLAIN = AttentionSpec(scale=0.15, latent=RANK)
TERMS = AttentionSpec(scale=0.15, window=70, softcap=4.0, latent=RANK)

Attend = Callable[..., tuple[Array, Array, Array]]


def latent_step(group: int, spec: AttentionSpec, *, ragged: bool) -> Step:
    """A step whose values are the first elements of its keys."""
    shape, tokens = Shape(1, group, RANK + REST), 64 if ragged else 5
    step = random_step(group, shape, rows=5, tokens=tokens, ragged=ragged, window=spec.window)
    qkv = step.qkv.copy()
    qkv[:, :, -1] = qkv[:, :, -2]
    return replace(step, qkv=qkv, values=step.keys)


def bias_of(spec: AttentionSpec, step: Step) -> AttentionBias:
    return random_bias(1, step.shape) if spec.window else AttentionBias()


def run(attend: Attend, step: Step, spec: AttentionSpec, dtype: str, cache: str | None = None) -> list[np.ndarray]:
    """What is attended, and both caches."""
    keys, rest = (among_layers(part, cache or dtype) for part in (step.keys[..., :RANK], step.keys[..., RANK:]))
    q_and_key = jnp.asarray(step.qkv[:, :, :-1], dtype)
    made = jax.jit(partial(attend, bias=bias_of(spec, step), spec=spec))(q_and_key, None, keys, rest, step.batch)
    return [np.asarray(each, np.float32) for each in made]


@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "mixed"])
@pytest.mark.parametrize("spec", [PLAIN, TERMS], ids=["plain", "every term"])
def test_the_reference_is_what_the_definition_says(spec: AttentionSpec, ragged: bool) -> None:
    step = latent_step(3, spec, ragged=ragged)
    out, *_ = run(reference.attend, step, spec, "float32")
    expected = dense_attention(step, replace(spec, latent=0), bias_of(spec, step))[..., :RANK]
    np.testing.assert_allclose(out[: step.tokens], expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "mixed"])
@pytest.mark.parametrize(
    ("group", "dtype", "cache", "spec"),
    [
        pytest.param(3, "float16", None, TERMS, id="every term"),
        pytest.param(40, "bfloat16", None, PLAIN, id="two tiles of a key"),
        pytest.param(64, "float16", "float8_e4m3fn", PLAIN, id="fp8"),
    ],
)
def test_the_kernels_agree_with_the_reference(
    group: int, dtype: str, cache: str | None, spec: AttentionSpec, ragged: bool
) -> None:
    step = latent_step(group, spec, ragged=ragged)
    kernels: Attend = partial(triton.attend, interpret=True)
    ours, theirs = (run(attend, step, spec, dtype, cache) for attend in (kernels, reference.attend))
    np.testing.assert_allclose(ours[0][: step.tokens], theirs[0][: step.tokens], atol=TOLERANCE[dtype])
    assert not ours[0][step.tokens :].any()
    for cached, expected in zip(ours[1:], theirs[1:], strict=True):
        np.testing.assert_array_equal(cached[LAYER, 1:], expected[LAYER, 1:])


@pytest.mark.parametrize(("group", "heads"), [(128, 32), (20, 20), (40, 20), (16, 16), (7, 7), (37, 1)])
def test_a_tile_has_a_divisor_of_the_heads(group: int, heads: int) -> None:
    assert heads_of_tile(group) == heads

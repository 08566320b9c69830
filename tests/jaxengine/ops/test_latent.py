"""Attention over latents: what is cached once is both keys and values. Of the reference against the definition, and of
the interpreted kernels against the reference.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.ops import AttentionBias, AttentionSpec, reference, triton
from jaxengine.ops.triton.latent import heads_of_tile
from tests.jaxengine.ops.steps import LAYER, Shape, Step, among_layers, dense_attention, random_bias, random_step

TOLERANCE = {"float32": 5e-6, "float16": 4e-3, "bfloat16": 3e-2}
RANK, REST = 32, 16
PLAIN = AttentionSpec(scale=0.15, latent=RANK)
TERMS = AttentionSpec(scale=0.15, window=70, softcap=4.0, latent=RANK)


def latent_step(seed: int, *, group: int, ragged: bool, rows: int = 5, tokens: int = 5, window: int = 0) -> Step:
    """A step whose values are the first elements of its keys."""
    step = random_step(
        seed, Shape(1, group, RANK + REST), rows=rows, tokens=tokens, ragged=ragged, window=window
    )
    qkv, values = step.qkv.copy(), step.keys.copy()
    qkv[:, :, -1] = qkv[:, :, -2]
    return replace(step, qkv=qkv, values=values)


def run(attend: object, step: Step, spec: AttentionSpec, dtype: str, cache: str | None = None) -> tuple[np.ndarray, ...]:
    keys, rest = (among_layers(part, cache or dtype) for part in (step.keys[..., :RANK], step.keys[..., RANK:]))
    q_and_key = jnp.asarray(step.qkv[:, :, :-1], dtype)
    made = jax.jit(partial(attend, spec=spec))(q_and_key, keys=keys, values=rest, batch=step.batch)
    return tuple(np.asarray(each, np.float32) for each in made)


@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "mixed"])
@pytest.mark.parametrize("spec", [PLAIN, TERMS], ids=["plain", "every term"])
def test_the_reference_is_what_the_definition_says(spec: AttentionSpec, ragged: bool) -> None:
    step = latent_step(3, group=3, ragged=ragged, tokens=64 if ragged else 5, window=spec.window)
    bias = random_bias(1, step.shape) if spec.window else AttentionBias()
    attend = lambda x, **arrays: reference.attend(x, None, bias=bias, **arrays)  # noqa: E731
    out, *_ = run(attend, step, spec, "float32")
    expected = dense_attention(step, replace(spec, latent=0), bias)[..., :RANK]
    np.testing.assert_allclose(out[: step.tokens], expected, atol=1e-5)


@pytest.mark.parametrize(("group", "dtype", "cache"), [(3, "float16", None), (40, "bfloat16", None), (64, "float16", "float8_e4m3fn")])
@pytest.mark.parametrize("ragged", [False, True], ids=["decode", "mixed"])
@pytest.mark.parametrize("spec", [PLAIN, TERMS], ids=["plain", "every term"])
def test_the_kernels_agree_with_the_reference(
    spec: AttentionSpec, ragged: bool, group: int, dtype: str, cache: str | None
) -> None:
    step = latent_step(group, group=group, ragged=ragged, tokens=64 if ragged else 5, window=spec.window)
    bias = random_bias(1, step.shape) if spec.window else AttentionBias()
    kernels = lambda x, **arrays: triton.attend(x, None, bias=bias, interpret=True, **arrays)  # noqa: E731
    oracle = lambda x, **arrays: reference.attend(x, None, bias=bias, **arrays)  # noqa: E731
    ours, theirs = (run(attend, step, spec, dtype, cache) for attend in (kernels, oracle))
    np.testing.assert_allclose(ours[0][: step.tokens], theirs[0][: step.tokens], atol=TOLERANCE[dtype])
    assert not ours[0][step.tokens :].any()
    for cached, expected in zip(ours[1:], theirs[1:], strict=True):
        np.testing.assert_array_equal(cached[LAYER, 1:], expected[LAYER, 1:])


@pytest.mark.parametrize(("group", "heads"), [(128, 32), (20, 20), (40, 20), (16, 16), (7, 7), (37, 1)])
def test_a_tile_has_a_divisor_of_the_heads(group: int, heads: int) -> None:
    assert heads_of_tile(group) == heads

"""What an MLP activates with, beside transformers' own, and in kernels, which have few functions."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from transformers.activations import ACT2FN

from jaxengine.architecture.model import ClampedGate
from jaxengine.model.mlp import ACTIVATIONS, Activated
from jaxengine.ops.triton import grouped

NAMES = {"gelu_tanh": "gelu_pytorch_tanh"}  # of transformers
CLAMPED = Activated("silu", ClampedGate(7.0, 1.702))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_transformers(name: str) -> None:
    x = np.linspace(-12, 12, 4801, dtype=np.float32)
    expected = ACT2FN[NAMES.get(name, name)](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ACTIVATIONS[name](jnp.asarray(x)), expected, atol=2e-6)  # type: ignore[index]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("activated", [*map(Activated, ACTIVATIONS), CLAMPED], ids=str)
def test_in_16_bits_they_are_rounded_once(activated: Activated, dtype: jnp.dtype) -> None:
    """Not each of their operations: where GELU is nearly 0, 1 + tanh has no digits left."""
    numbers = jnp.linspace(-12, 12, 4801).astype(dtype)
    inputs = (numbers, numbers[::-1]) if activated.clamped else (numbers,)
    exact = np.asarray(activated(*(x.astype(jnp.float32) for x in inputs)))
    unit = jnp.finfo(dtype)
    np.testing.assert_allclose(
        np.asarray(jax.jit(activated)(*inputs), np.float32), exact, rtol=float(unit.eps), atol=float(unit.tiny) + 1e-6
    )


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("activated", [*map(Activated, ACTIVATIONS), CLAMPED], ids=str)
def test_a_kernel_for_a_gpu_has_each(activated: Activated, parts: int) -> None:
    """Lowered for one that is not there; since JAX 0.12 its kind has to be named."""
    product = partial(grouped.product, plane=64, group=64, offset=8, activation=activated, parts=parts)
    given = (((1, 1024), "bfloat16"), ((64, 256), "uint16"), ((16, 64), "bfloat16"))
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in given]
    h200 = AbstractMesh((1,), ("data",), abstract_device=AbstractDevice("NVIDIA H200", None, "cuda"))
    with use_abstract_mesh(h200):
        lowered = jax.jit(product).trace(*arrays, None).lower(lowering_platforms=("cuda",))
    assert "grouped_product" in lowered.as_text()

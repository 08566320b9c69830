"""Every way to add what adapters add is the definition's: for each token b · (a · x), of its own adapter."""

from collections.abc import Iterator
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from jaxengine.architecture.adaptation import Adaptable
from jaxengine.ops import adapters
from jaxengine.ops.adapters import AdapterStack, AdapterTokens, change

RANK, FLOAT = 3, jnp.dtype(jnp.float32)
SHAPES: dict[str, tuple[Adaptable, tuple[int, ...], tuple[int, ...]]] = {  # outputs, inputs
    "one module": (Adaptable(), (7,), (5,)),
    "heads of inputs": (Adaptable(), (7,), (2, 3)),
    "gate and up": (Adaptable((0, 1), 0), (2, 7), (5,)),
    "q, k and v": (Adaptable((0, 0, 0, 1, 2), 1), (2, 5, 3), (6,)),
    "fused": (Adaptable((0, 0, 0), 1), (2, 3, 3), (6,)),
    "units on the last axis": (Adaptable((1, 0, 1), 2), (2, 4, 3), (6,)),
}
# Of up to 4 tokens, of up to 32 and of more a CPU makes blocks of different sizes; some fill none.
CASES = [*(("q, k and v", 8, tokens) for tokens in (1, 3, 45)), *((shape, 8, 18) for shape in SHAPES)]
CASES.append(("one module", 1, 6))


@cache
def stack_of(shape: str, slots: int, dtype: str = "float32") -> AdapterStack:
    adaptable, outputs, inputs = SHAPES[shape]
    kept = [size for axis, size in enumerate(outputs) if axis != adaptable.axis]
    chance = np.random.default_rng(slots)
    a = chance.normal(size=(slots, adaptable.modules * RANK, *inputs))
    b = chance.normal(size=(len(adaptable.parts), slots, RANK, *kept))
    return AdapterStack(jnp.asarray(a, dtype), jnp.asarray(b, dtype), "m", adaptable, on_host=True)


def by_definition(x: np.ndarray, stack: AdapterStack, slot: np.ndarray) -> np.ndarray:
    adaptable, (a, b) = stack.adaptable, (np.asarray(each, np.float64) for each in (stack.a, stack.b))
    rows = []
    for token, number in enumerate(slot):
        units = []
        for unit, part in enumerate(adaptable.parts):
            used = min(number, stack.slots - 1)
            of_part = a[used].reshape(adaptable.modules, RANK, -1)[part]
            inner = of_part @ x[token].reshape(-1).astype(np.float64) * (number < stack.slots)
            units.append(np.tensordot(inner, b[unit, used], 1))
        rows.append(units[0] if adaptable.axis is None else np.stack(units, adaptable.axis))
    return np.stack(rows)


@jax.jit
def all_ways(x: Array, stack: AdapterStack, slot: Array) -> dict[str, Array]:
    """What a CPU makes, and what a GPU makes of few tokens and of many; each in the layout of `change`."""
    tokens = AdapterTokens.of(slot, stack.slots)
    made = {"host": change(x, stack, tokens, FLOAT)}
    device = AdapterStack(stack.a, stack.b, stack.name, stack.adaptable, on_host=False)
    for name, other in (("gathered", "_of_all_slots"), ("of all slots", "_gathered")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(adapters, other, getattr(adapters, f"_{name.replace(' ', '_')}"))
            made[name] = change(x, device, tokens, FLOAT)
    return made


def assignments(tokens: int, slots: int) -> Iterator[np.ndarray]:
    """Which slot each token has; `slots` is none."""
    chance = np.random.default_rng(tokens)
    yield chance.integers(0, slots + 1, tokens)
    yield np.full(tokens, slots)
    yield np.full(tokens, slots - 1)
    yield np.sort(chance.integers(0, slots + 1, tokens))
    alone = np.full(tokens, slots)  # each slot has one token at most
    some = chance.permutation(tokens)[: min(tokens, slots)]
    alone[some] = chance.permutation(slots)[: len(some)]
    yield alone
    yield np.where(np.arange(tokens) == tokens // 2, 0, slots)


@pytest.mark.parametrize(("shape", "slots", "tokens"), CASES)
def test_each_token_has_what_its_own_adapter_adds(shape: str, slots: int, tokens: int) -> None:
    stack, inputs = stack_of(shape, slots), SHAPES[shape][2]
    x = np.random.default_rng(0).normal(size=(tokens, *inputs)).astype(np.float32)
    for slot in assignments(tokens, slots):
        expected = by_definition(x, stack, slot)
        assert tokens > 1 or slot[0] == slots or expected.any()
        for way, made in all_ways(x, stack, jnp.asarray(slot, jnp.int32)).items():
            np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4, err_msg=f"{way}, slots {slot.tolist()}")
            assert made.dtype == jnp.float32


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("tokens", "slots", "way"), [(4, 8, "_gathered"), (8, 8, "_gathered"), (9, 8, "_of_all_slots")]
)
def test_a_gpu_gathers_for_no_more_tokens_than_slots(
    shape: str, tokens: int, slots: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, used = stack_of(shape, slots), []
    for name in ("_gathered", "_of_all_slots", "_on_host"):
        right = getattr(adapters, name)
        monkeypatch.setattr(adapters, name, lambda *args, name=name, right=right: used.append(name) or right(*args))
    device = AdapterStack(stack.a, stack.b, "m", stack.adaptable, on_host=False)
    x = jax.ShapeDtypeStruct((tokens, *SHAPES[shape][2]), jnp.float32)
    slot = jax.ShapeDtypeStruct((tokens,), jnp.int32)
    jax.eval_shape(lambda x, slot: change(x, device, AdapterTokens.of(slot, slots), FLOAT), x, slot)
    assert used == [way]


def test_sums_are_of_32_bits_whatever_adapters_are_stored_in() -> None:
    dtype = "bfloat16"
    stack = stack_of("q, k and v", 8, dtype)
    x = np.random.default_rng(0).normal(size=(16, 6)).astype(dtype)
    slot = np.random.default_rng(1).integers(0, 9, 16)
    expected = by_definition(x, stack, slot)
    for way, made in all_ways(jnp.asarray(x), stack, jnp.asarray(slot, jnp.int32)).items():
        assert made.dtype == jnp.float32
        np.testing.assert_allclose(made, expected, rtol=2e-2, atol=6e-2, err_msg=way)


@pytest.mark.parametrize("tokens", [3, 18, 45])
def test_what_is_not_finite_stays_with_its_token(tokens: int) -> None:
    stack = stack_of("q, k and v", 8)
    x = np.random.default_rng(0).normal(size=(tokens, 6)).astype(np.float32)
    slot = np.random.default_rng(1).integers(0, 9, tokens)
    whole = {way: np.asarray(made) for way, made in all_ways(x, stack, jnp.asarray(slot, jnp.int32)).items()}
    x[1] = np.nan
    others = np.arange(tokens) != 1
    for way, made in all_ways(x, stack, jnp.asarray(slot, jnp.int32)).items():
        np.testing.assert_allclose(np.asarray(made)[others], whole[way][others], atol=1e-6, err_msg=way)

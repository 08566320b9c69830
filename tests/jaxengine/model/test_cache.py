"""The caches of all layers lie in two arrays, or in more where kernels could not address so large ones."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from jaxengine.engine.engine import Engine
from jaxengine.model import cache
from jaxengine.model.cache import LayerCaches, layers_of_array
from tests.jaxengine.engines import ask, load, prompt, serve
from tests.shapes import LLAMA_8B

GIB = 1 << 30
LAYER = 16 * LLAMA_8B.num_kv_heads * LLAMA_8B.head_dim  # elements of a page of 16 tokens in one layer


@pytest.mark.parametrize(
    ("gibs", "dtype", "devices", "layers"),
    [
        (2, "float8_e4m3fn", 1, 32),
        (2.5, "float8_e4m3fn", 1, 25),
        (4, "float8_e4m3fn", 1, 16),
        (4, "float8_e4m3fn", 2, 32),
        (6, "float8_e4m3fn", 2, 21),
        (4.5, "float8_e4m3fn", 1, 32),
        (2.5, "bfloat16", 1, 32),
    ],
)
def test_an_array_of_bytes_has_no_more_than_32_bits_number_or_more_than_64_are_used_for(
    gibs: float, dtype: str, devices: int, layers: int
) -> None:
    """`gibs`: elements of all 32 layers' keys."""
    pages = int(gibs * GIB) // (32 * LAYER)
    assert layers_of_array(LLAMA_8B, 32, pages, 16, dtype, devices) == layers


def test_the_sink_counts() -> None:
    pages = 2 * GIB // (32 * LAYER)
    assert layers_of_array(LLAMA_8B, 32, pages + 1, 16, "float8_e4m3fn", 1) == 31
    assert layers_of_array(replace(LLAMA_8B, num_layers=1), 1, 32 * pages + 1, 16, "float8_e4m3fn", 1) == 1


def test_a_layer_is_found_in_its_pair_and_replaced_there() -> None:
    caches = LayerCaches([jnp.zeros((size, 1)) for size in (3, 3, 2, 2)])
    assert [caches.of_layer(layer)[2] for layer in range(7)] == [0, 1, 2, 0, 1, 0, 1]  # the sixth is the first again
    caches.replace(4, jnp.ones((2, 1)), jnp.full((2, 1), 2))
    assert [float(each.max()) for each in caches.arrays] == [0, 0, 1, 2]
    keys, values, _ = caches.of_layer(3)
    assert keys.max() == 1 and values.max() == 2


def test_what_layers_keep_with_their_states_lies_behind_the_pairs() -> None:
    caches = LayerCaches([jnp.zeros((size, 1)) for size in (3, 3, 2, 2, 2)], kept=3)
    assert [caches.of_layer(layer)[2] for layer in range(4)] == [0, 1, 2, 0]
    caches.replace_kept([each + 1 for each in caches.kept])
    assert [float(each.max()) for each in caches.arrays] == [0, 0, 1, 1, 1]


@pytest.mark.parametrize(("kind", "name"), [("tiny", "llama2_gqa"), ("seq2seq", "flan_t5")])
def test_an_engine_answers_the_same_from_more_arrays(
    kind: str, name: str, request: pytest.FixtureRequest, compile_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one layer each. An encoder writes to its decoder's caches."""

    def answers(engine: Engine) -> list[list[int]]:
        requests = [ask(number, prompt(20 + number), max_tokens=6) for number in range(3)]
        return [[token.id for token in answer.tokens] for answer in serve(engine, requests).values()]

    def engine() -> Engine:
        return load(request.getfixturevalue(kind)(name), max_batch_size=4, kv_cache_dtype="fp8")

    whole = engine()
    (keys, _), expected = whole.runner.state.layers, answers(whole)
    monkeypatch.setattr(cache, "ADDRESSES", keys.nbytes // len(keys))
    split = engine()
    assert len(split.runner.state.layers) == 4
    assert answers(split) == expected

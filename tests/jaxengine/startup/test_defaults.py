"""The buckets that options imply."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from jaxengine.architecture.vision import Horizon
from jaxengine.device import CPU, DeviceTraits
from jaxengine.options.table import EngineOptions
from jaxengine.startup.defaults import IMAGE_ROWS, derive_limits
from jaxengine.step import functions
from tests.shapes import H200, LLAMA_8B, LLAVA_NEXT_7B, QWEN3_5_27B

WIDTH, VOCAB = 8, 40


@pytest.mark.parametrize("device", [CPU, H200], ids=["cpu", "h200"])
def test_every_step_that_verifies_can_be_compiled_whatever_the_limits(device: DeviceTraits) -> None:
    sizes: set[int] = set()
    for rows, drafts, budget in itertools.product((1, 2, 3, 5, 9, 40, 200), (1, 3, 5, 15), (None, 1, 33, 70)):
        options = EngineOptions(max_batch_size=rows, speculate=drafts, max_batch_prefill_tokens=budget)
        limits = derive_limits(options, LLAMA_8B, device)
        assert limits.verify_buckets[-1] <= limits.token_budget
        assert limits.verify_buckets[0] > 1 and len(set(limits.verify_buckets)) == len(limits.verify_buckets)
        sizes |= {*limits.verify_buckets}
    for tokens in sizes:
        assert _scored(tokens).shape[0] == tokens


def test_no_step_verifies_more_than_all_rows_can_have() -> None:
    def buckets(rows: int, drafts: int) -> tuple[int, ...]:
        return derive_limits(EngineOptions(max_batch_size=rows, speculate=drafts), LLAMA_8B, CPU).verify_buckets

    assert buckets(1, 1) == (4,)
    assert buckets(1, 7) == (4, 8)
    assert buckets(3, 15) == buckets(32, 15) == (4, 8, 16, 32, 64)
    assert buckets(32, 0) == ()


def test_where_layers_keep_states_a_draft_has_room_behind_all_of_the_one_before() -> None:
    """Which is computed again, if it was right: a lone request would otherwise have one in every other step."""

    def most(rows: int, drafts: int, device: DeviceTraits) -> int:
        return derive_limits(EngineOptions(max_batch_size=rows, speculate=drafts), QWEN3_5_27B, device).verify_buckets[
            -1
        ]

    for drafts in (1, 3, 7, 15):
        for device in (CPU, H200):
            assert most(1, drafts, device) >= 1 + 2 * drafts
    assert most(4, 3, H200) == 32


@pytest.mark.parametrize("device", [CPU, H200], ids=["cpu", "h200"])
def test_no_step_has_more_tokens_than_all_rows_can_have(device: DeviceTraits) -> None:
    """Whatever is asked for, as by those to whom a huge number means no limit."""
    given = EngineOptions(max_batch_prefill_tokens=2**31 - 1, max_batch_size=3, max_total_tokens=1000)
    assert derive_limits(given, LLAMA_8B, device).token_budget == 3008
    assert derive_limits(replace(given, max_batch_prefill_tokens=2000), LLAMA_8B, device).token_budget == 2016
    assert derive_limits(EngineOptions(max_batch_size=1, max_total_tokens=20), LLAMA_8B, device).token_budget == 32


def test_the_largest_picture_is_what_the_model_cuts_one_into() -> None:
    limits = derive_limits(EngineOptions(), LLAVA_NEXT_7B, H200)
    assert limits.image_patches == 5 * 576
    largest = limits.see_shapes(LLAVA_NEXT_7B.vision)[-1]
    assert (largest.segments, largest.rows, limits.image_rows) == (5, 5 * 600, IMAGE_ROWS)
    asked = derive_limits(EngineOptions(max_image_patches=1000, image_cache_tokens=9999), LLAVA_NEXT_7B, H200)
    assert (asked.image_patches, asked.image_rows) == (2 * 576, 9999)


def test_a_cpu_takes_smaller_pictures_but_all_tiles_of_one() -> None:
    vision = LLAVA_NEXT_7B.vision
    assert vision is not None
    of_any_size = replace(vision, tower=replace(vision.tower, positions="none", class_token=False), skipped=0)
    for eyes, patches in ((vision, (2880, 2880)), (replace(of_any_size, rows="tiles", pinpoints=()), (4096, 16384))):
        spec = replace(LLAVA_NEXT_7B, vision=eyes)
        found = [derive_limits(EngineOptions(), spec, device).image_patches for device in (CPU, H200)]
        assert tuple(found) == patches


def test_a_pool_too_small_for_the_largest_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="image_cache_tokens 100 cannot hold the 3000 tokens"):
        derive_limits(EngineOptions(image_cache_tokens=100), LLAVA_NEXT_7B, H200)


@pytest.mark.parametrize(("horizon", "beside"), [("token", -576), ("image", 32), ("prompt", 32 + 256)])
def test_a_step_holds_what_must_not_be_cut_beside_all_rows(horizon: Horizon, beside: int) -> None:
    """576 tokens of a tile, where a step on a CPU has 256 otherwise."""
    vision = LLAVA_NEXT_7B.vision
    assert vision is not None
    spec = replace(LLAVA_NEXT_7B, vision=replace(vision, horizon=horizon, rows="tiles"))
    assert derive_limits(EngineOptions(), spec, CPU).token_budget == max(256, 576 + beside)
    assert not derive_limits(EngineOptions(), LLAMA_8B, CPU).image_patches


def _scored(tokens: int) -> jax.ShapeDtypeStruct:
    """What a step of `tokens` tokens scores. Not every number of tokens can be cut into its blocks."""
    head = jnp.ones((WIDTH, VOCAB))
    hidden, target = jax.ShapeDtypeStruct((tokens, WIDTH), jnp.float32), jax.ShapeDtypeStruct((tokens,), jnp.int32)
    return jax.eval_shape(lambda hidden, target: functions.score(3, lambda x: x @ head, hidden, target), hidden, target)  # type: ignore

"""The roofline against figures worked out by hand for Llama-3.1-8B in bf16."""

import pytest

from jaxengine.capacity.pictures import picture_cost
from jaxengine.capacity.roofline import (
    kv_bytes_per_token,
    state_bytes,
    step_cost,
    weight_bytes,
    weight_elements,
    weights_used,
)
from jaxengine.weights.quantization import chosen_formats
from tests.gemma4_shapes import GEMMA4_31B, GEMMA4_E2B
from tests.shapes import FALCON_MAMBA_7B, FLAN_T5_XXL, GEMMA2_9B, LLAMA_8B, LLAVA_NEXT_7B, MIXTRAL


def test_weights_read_in_a_step_leave_out_the_embedding_table() -> None:
    layer = 4096 * 4096 * 2 + 2 * 1024 * 4096 + 3 * 4096 * 14336 + 2 * 4096
    assert weight_elements(LLAMA_8B) == 32 * layer + 4096 + 128256 * 4096
    assert 2 * weight_elements(LLAMA_8B) == pytest.approx(15.0e9, rel=0.01)


def test_a_cached_token_is_131072_bytes() -> None:
    assert kv_bytes_per_token(LLAMA_8B, 2) == 131072


def test_a_step_reads_and_writes_each_row_s_states_however_long_its_context() -> None:
    assert state_bytes(FALCON_MAMBA_7B, 2) == 64 * 8192 * (16 * 4 + 3 * 2)
    short, long = (step_cost(FALCON_MAMBA_7B, rows=128, new=1, context=context) for context in (1, 10_000))
    assert short.bytes == long.bytes == pytest.approx(14.0e9 + 128 * 2 * 64 * 8192 * 70, rel=0.01)


def test_decoding_128_rows_at_1k_context_is_bound_by_bytes() -> None:
    cost = step_cost(LLAMA_8B, rows=128, new=1, context=1024)
    assert cost.bytes == pytest.approx(15.0e9 + 128 * 1024 * 131072, rel=0.01)
    assert cost.seconds(4.3e12, 790e12) == cost.bytes / 4.3e12


def test_behind_a_window_less_is_read_and_computed() -> None:
    """Every other layer of Gemma 2 sees 4096 tokens."""
    short, long = (step_cost(GEMMA2_9B, rows=1, new=1, context=context) for context in (4096, 8192))
    assert long.bytes - short.bytes == 4096 * kv_bytes_per_token(GEMMA2_9B, 2) / 2
    assert long.operations - short.operations == 4 * 21 * 4096 * 16 * 256


def test_a_decoder_reads_none_of_its_encoder() -> None:
    decoder = 24 * (4096 * 64 * 64 * 6 + 3 * 4096 * 10240)  # its own attention, half of the other, and the MLP
    assert weight_elements(FLAN_T5_XXL) == pytest.approx(decoder + 32128 * 4096, rel=0.001)


def test_a_picture_costs_its_tower_and_what_its_patches_see() -> None:
    """Five tiles of 576 patches through the 23 used layers of CLIP-L and two products to 4096; a tile sees itself."""
    cost = picture_cost(LLAVA_NEXT_7B, 2880, 2)
    layers, connector = 23 * 12 * 1024**2, 4096 * (1024 + 4096)
    assert cost.bytes == 2 * (layers + connector + 588 * 1024)
    products = 2 * 2880 * (layers + connector + 588 * 1024)
    assert cost.operations == products + 4 * 2880 * 576 * 23 * 1024


def test_prefilling_8k_tokens_is_bound_by_operations() -> None:
    cost = step_cost(LLAMA_8B, rows=1, new=8192, context=0)
    assert cost.operations == pytest.approx(2 * 8192 * 6.98e9 + 4 * 8192 * 8193 / 2 * 32 * 4096, rel=0.01)
    assert cost.seconds(4.3e12, 790e12) == cost.operations / 790e12


@pytest.mark.parametrize("quantize", ["int8", "fp8"])
def test_8_bit_weights_leave_the_head_and_norms_in_16(quantize: str) -> None:
    """7.0 GB of projections with 1.3 M scales, 1.05 GB of head."""
    formats = chosen_formats(LLAMA_8B, quantize)
    assert weight_bytes(LLAMA_8B, 2, formats) == pytest.approx(6.98e9 + 4 * 1.38e6 + 1.05e9, rel=0.001)
    cost = step_cost(LLAMA_8B, rows=1, new=1, context=0, formats=formats)
    assert cost.bytes == pytest.approx(weight_bytes(LLAMA_8B, 2, formats), rel=1e-4)


def test_a_token_is_multiplied_by_the_experts_that_it_is_sent_to() -> None:
    """Two of eight, each as large as Llama's MLP."""
    mlp = 32 * 3 * 4096 * 14336
    assert weights_used(MIXTRAL) == pytest.approx(weight_elements(LLAMA_8B) + mlp + 32 * 8 * 4096)
    one, many = (step_cost(MIXTRAL, rows=rows, new=1, context=0) for rows in (1, 256))
    assert one.operations == pytest.approx(2 * weights_used(MIXTRAL), rel=1e-3)
    assert many.operations == pytest.approx(256 * one.operations, rel=1e-3)


@pytest.mark.parametrize(("rows", "read"), [(1, 2.0), (2, 3.5), (4, 8 * (1 - 0.75**4)), (256, 8.0)])
def test_a_step_reads_the_experts_that_some_token_is_sent_to(rows: int, read: float) -> None:
    """If all are equally likely: one token is sent to two; of two tokens, each expert misses both with (3/4)^2."""
    others = weight_bytes(LLAMA_8B, 2) - 2 * 32 * 3 * 4096 * 14336 + 2 * 32 * 8 * 4096
    assert weight_bytes(MIXTRAL, 2, tokens=rows) == pytest.approx(others + read * 2 * 32 * 3 * 4096 * 14336)
    assert weight_bytes(MIXTRAL, 2) == pytest.approx(others + 8 * 2 * 32 * 3 * 4096 * 14336)


def test_a_token_costs_what_the_layers_keep_that_make_keys_and_values() -> None:
    """Of Gemma 4's 31B 50 layers of 16 heads of 256 and 10 of 4 of 512; of E2B's 35 layers 12 and 3, of one head."""
    assert kv_bytes_per_token(GEMMA4_31B, 2) == 4 * (50 * 16 * 256 + 10 * 4 * 512)
    assert kv_bytes_per_token(GEMMA4_E2B, 2) == 4 * (12 * 256 + 3 * 512)


def test_layers_that_read_the_keys_of_others_read_them_again() -> None:
    """Of E2B 28 layers see 512 keys of 256 numbers, and 7 all keys of 512, however few make them."""
    short, long = (step_cost(GEMMA4_E2B, rows=1, new=1, context=context) for context in (512, 1536))
    assert long.bytes - short.bytes == 7 * 1024 * 4 * 512
    nothing = step_cost(GEMMA4_E2B, rows=1, new=1, context=0)
    assert short.bytes - nothing.bytes == 512 * 4 * (28 * 256 + 7 * 512)

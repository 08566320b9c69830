"""What 8-bit weights and caches cost an H200's step, with none at hand: nothing beside reading them, but where a prompt
is long.

The cast must be part of the product: written out, a weight in 16 bits would be read and written on top. To a prompt of
many tokens that is little beside its arithmetic, and one matrix at a time is written out. A product's kernel begins
with counters that XLA fills in, once for all products of one size.
"""

import pytest

from tests.gpu_compile.conftest import FactsByProgram
from tests.gpu_compile.written import assert_one_matrix_at_a_time

pytestmark = pytest.mark.slow

DECODING = ["decode_int8", "decode_fp8", "decode_fp8_tp8"]
STEPS = [*DECODING, "mixed_int8"]
ALONE = ["decode_1_int8", "decode_1_fp8"]
LAYERS, MIB = 4, 1 << 20


@pytest.mark.parametrize("step", DECODING)
def test_no_weight_or_cache_is_written_out_in_more_bits(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["rewrites"] == facts[step]["copies"] == []


@pytest.mark.parametrize("step", ALONE)
def test_a_lone_request_reads_weights_in_8_bits(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["rewrites"] == []
    assert facts[step]["copies"] == []
    assert facts[step]["temporaries"] < MIB
    assert facts[step]["kernels"] <= facts["decode_1"]["kernels"]


@pytest.mark.parametrize("step", STEPS)
def test_an_8_bit_cache_is_updated_in_place_to_the_last_byte(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["aliased"] == facts[step]["donated"] > 0


@pytest.mark.parametrize("step", [*STEPS, *ALONE])
def test_the_host_launches_one_cuda_graph_a_step(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["launched"] == ["CommandBuffer"]


def test_a_prompt_writes_out_one_matrix_at_a_time(facts: FactsByProgram) -> None:
    assert_one_matrix_at_a_time(facts["mixed_int8"], facts["mixed"])


def test_scales_are_applied_where_the_product_is_made(facts: FactsByProgram) -> None:
    """Over several devices before the shares are added up, so that sums are no wider and need no kernel behind them."""
    found, plain = facts["decode_fp8_tp8"], facts["decode_tp8"]
    assert found["kernels"] <= plain["kernels"]
    assert found["temporaries"] <= plain["temporaries"] + 2 * MIB
    assert found["collectives"] == plain["collectives"]

"""What 8-bit weights and caches cost an H200's step, with none at hand: nothing beside reading them.

The cast must be part of the product. Written out, a weight in 16 bits would be read and written on top. A product's
kernel begins with counters that XLA fills in, once for all products of one size.
"""

import pytest

from tests.gpu_compile.conftest import FactsByProgram

pytestmark = pytest.mark.slow

STEPS = ["decode_int8", "decode_fp8", "mixed_int8", "decode_fp8_tp8"]
ALONE = ["decode_1_int8", "decode_1_fp8"]
LAYERS, MIB = 4, 1 << 20


@pytest.mark.parametrize("step", STEPS)
def test_no_weight_or_cache_is_written_out_in_more_bits(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["rewrites"] == facts[step]["copies"] == []


@pytest.mark.parametrize("step", ALONE)
def test_a_lone_request_reads_weights_in_8_bits(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["rewrites"] == []
    assert facts[step]["copies"] == []
    assert facts[step]["temporaries"] < MIB


@pytest.mark.parametrize("step", STEPS)
def test_an_8_bit_cache_is_updated_in_place_to_the_last_byte(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["aliased"] == facts[step]["donated"] > 0


@pytest.mark.parametrize("step", [*STEPS, *ALONE])
def test_the_host_launches_one_cuda_graph_a_step(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["launched"] == ["CommandBuffer"]


@pytest.mark.parametrize(("step", "plain"), [("mixed_int8", "mixed"), ("decode_fp8_tp8", "decode_tp8")])
def test_scales_are_applied_where_the_product_is_made(facts: FactsByProgram, step: str, plain: str) -> None:
    """Over several devices before the shares are added up, so that sums are no wider and need no kernel behind them."""
    assert facts[step]["kernels"] <= facts[plain]["kernels"] + LAYERS
    assert facts[step]["temporaries"] <= facts[plain]["temporaries"] + 2 * MIB
    assert facts[step]["collectives"] == facts[plain]["collectives"]

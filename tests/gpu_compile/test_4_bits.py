"""What weights in 4 bits cost an H200's step, with none at hand: a kernel for each product, and nothing around it. A
prompt's products are of 16 bits, for which one matrix at a time is written out.

A kernel's counters begin as zeros that XLA fills in, once for all products of one size.
"""

import pytest

from tests.gpu_compile.conftest import FactsByProgram
from tests.gpu_compile.written import assert_one_matrix_at_a_time

pytestmark = pytest.mark.slow

PLAIN = {
    "decode_int4": "decode_4_layers",
    "decode_1_int4": "decode_1",
    "decode_1_nf4": "decode_1",
    "decode_int4_tp8": "decode_tp8",
}
ORDERED = {
    "decode_int4_ordered": "decode_int4",
    "decode_1_int4_ordered": "decode_1_int4",
    "decode_int4_ordered_tp8": "decode_int4_tp8",
}
LAYERS, MIB = 4, 1 << 20


@pytest.mark.parametrize("step", PLAIN)
def test_no_weight_is_written_out_in_more_bits(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["rewrites"] == facts[step]["copies"] == []
    assert facts[step]["temporaries"] <= facts[PLAIN[step]]["temporaries"] + MIB


@pytest.mark.parametrize("step", PLAIN)
def test_a_layer_has_no_more_kernels_than_in_16_bits(facts: FactsByProgram, step: str) -> None:
    """One less, the activation's, since its products activate; and for all layers the counters."""
    assert facts[step]["kernels"] <= facts[PLAIN[step]]["kernels"]
    assert facts[step]["collectives"] == facts[PLAIN[step]]["collectives"]
    assert facts[step]["launched"] == ["CommandBuffer"]


def test_a_prompt_writes_out_one_matrix_at_a_time(facts: FactsByProgram) -> None:
    assert_one_matrix_at_a_time(facts["mixed_int4"], facts["mixed"])
    assert facts["mixed_int4"]["launched"] == ["CommandBuffer"]


@pytest.mark.parametrize("step", ORDERED)
def test_sorted_inputs_cost_two_kernels_a_layer(facts: FactsByProgram, step: str) -> None:
    """A gather of what attention makes, and of what the first products of an MLP do. What makes the inputs of other
    products gathers them: norms, the first one's XLA. Over several devices, the two products with split inputs gather
    those of all devices first.
    """
    plain, devices = facts[ORDERED[step]], 8 if "tp8" in step else 1
    assert facts[step]["rewrites"] == facts[step]["copies"] == []
    assert facts[step]["temporaries"] <= plain["temporaries"] + MIB
    gathers, gathered = (2, 0) if devices == 1 else (2, 2)
    assert facts[step]["kernels"] <= plain["kernels"] + (gathers + gathered) * LAYERS + 1
    assert facts[step]["collectives"].get("all-gather", 0) == gathered * LAYERS
    assert facts[step]["launched"] == ["CommandBuffer"]

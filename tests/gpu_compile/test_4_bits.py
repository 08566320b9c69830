"""What weights in 4 bits cost an H200's step, with none at hand: a kernel for each product, and nothing around it. A
prompt's products are of 16 bits, for which a chunk of the weight is written out at a time.

A kernel's counters begin as zeros that XLA fills in, once for all products of one size.
"""

import pytest

from tests.gpu_compile.conftest import FactsByProgram

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
CHUNKS = 2 + 1 + 7 + 4  # of a layer's four matrices
JOINED = 2  # results of chunks that are put together by a kernel of their own; an activation reads its chunks apart


@pytest.mark.parametrize("step", PLAIN)
def test_no_weight_is_written_out_in_more_bits(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["rewrites"] == facts[step]["copies"] == []
    assert facts[step]["temporaries"] <= facts[PLAIN[step]]["temporaries"] + MIB


@pytest.mark.parametrize("step", PLAIN)
def test_a_layer_has_hardly_more_kernels_than_in_16_bits(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["kernels"] <= facts[PLAIN[step]]["kernels"] + LAYERS
    assert facts[step]["collectives"] == facts[PLAIN[step]]["collectives"]
    assert facts[step]["launched"] == ["CommandBuffer"]


def test_a_prompt_writes_out_a_chunk_of_a_weight_and_never_the_whole(facts: FactsByProgram) -> None:
    """A chunk of "down" has as many numbers as the packed matrix has words, so it looks like all of it."""
    found, plain = facts["mixed_int4"], facts["mixed"]
    assert found["copies"] == []
    assert all("bf16[1024,14336]{1,0} writes all of parameter" in each for each in found["rewrites"])
    assert found["temporaries"] <= plain["temporaries"] + MIB
    assert found["kernels"] <= plain["kernels"] + (2 * CHUNKS - 4 + JOINED + 1) * LAYERS
    assert found["launched"] == ["CommandBuffer"]


@pytest.mark.parametrize("step", ORDERED)
def test_sorted_inputs_cost_a_kernel_a_layer(facts: FactsByProgram, step: str) -> None:
    """A gather of what attention makes. What makes the inputs of other products gathers them: norms, an activation, the
    first norm's XLA. Over several devices, the two products with split inputs gather those of all devices first.
    """
    plain, devices = facts[ORDERED[step]], 8 if "tp8" in step else 1
    assert facts[step]["rewrites"] == facts[step]["copies"] == []
    assert facts[step]["temporaries"] <= plain["temporaries"] + MIB
    gathers, gathered = (1, 0) if devices == 1 else (2, 2)
    assert facts[step]["kernels"] <= plain["kernels"] + (gathers + gathered) * LAYERS + 1
    assert facts[step]["collectives"].get("all-gather", 0) == gathered * LAYERS
    assert facts[step]["launched"] == ["CommandBuffer"]

"""What adapters cost an H200's step, with none at hand: a few small kernels a product, and no copy of a stack."""

import pytest

from tests.gpu_compile.conftest import FactsByProgram

pytestmark = pytest.mark.slow

LAYERS, MIB = 4, 1 << 20
# Each step, the same one without adapters, and how many kernels a layer of four products has more.
STEPS = {
    "decode_1_adapters": ("decode_1", 8),  # gathered
    "decode_adapters": ("decode_4_layers", 16),  # of all slots
    "decode_int4_adapters": ("decode_int4", 17),  # and the activation, which the products' kernel makes without them
    "decode_adapters_tp8": ("decode_tp8", 16),
    "mixed_adapters": ("mixed", 16),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_product_has_a_few_kernels_more_and_nothing_is_copied(facts: FactsByProgram, step: str) -> None:
    plain, kernels = STEPS[step]
    assert facts[step]["copies"] == facts[step]["rewrites"] == []
    assert facts[step]["kernels"] <= facts[plain]["kernels"] + kernels * LAYERS
    assert facts[step]["launched"] == ["CommandBuffer"]


@pytest.mark.parametrize("step", STEPS)
def test_devices_sum_no_more_often(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["collectives"] == facts[STEPS[step][0]]["collectives"]


def test_a_lone_request_gathers_nothing_into_memory(facts: FactsByProgram) -> None:
    assert facts["decode_1_adapters"]["temporaries"] <= facts["decode_1"]["temporaries"] + MIB // 4


def test_many_tokens_keep_what_is_added_to_one_product(facts: FactsByProgram) -> None:
    """2,048 tokens: gate and up of 14,336 in 16 bits."""
    of_product = 2048 * 2 * 14336 * 2
    assert facts["mixed_adapters"]["temporaries"] <= facts["mixed"]["temporaries"] + of_product + 16 * MIB


def test_an_adapter_is_placed_where_the_stacks_lie(facts: FactsByProgram) -> None:
    assert facts["place_adapter"]["aliased"] == facts["place_adapter"]["donated"]
    assert facts["place_adapter"]["temporaries"] < MIB

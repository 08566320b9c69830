"""What XLA makes of a layer, by the number: the table in jaxengine/README.md says it of whole models.

The difference between two depths is what layers take; what comes before and behind them drops out.
"""

import pytest

from tests.gpu_compile import table
from tests.gpu_compile.conftest import FactsByProgram

pytestmark = pytest.mark.slow

STEPS = {  # deeper and shallower, and by how many layers
    "llama": ("decode", "decode_4_layers", 28),
    "gpt2": ("decode_gpt2", "decode_gpt2_2_layers", 2),
    "bloom": ("decode_bloom", "decode_bloom_2_layers", 2),
    "pythia": ("decode_pythia", "decode_pythia_2_layers", 2),
    "opt": ("decode_opt", "decode_opt_2_layers", 2),
}


def of_a_layer(facts: FactsByProgram, model: str, fact: str) -> float:
    deeper, shallower, layers = STEPS[model]
    return (facts[deeper][fact] - facts[shallower][fact]) / layers  # type: ignore[no-any-return]


@pytest.mark.parametrize(("model", "kernels"), [("llama", 8), ("gpt2", 8), ("bloom", 8), ("pythia", 9), ("opt", 7)])
def test_a_layer_of_a_decode_step_is_so_many_kernels(facts: FactsByProgram, model: str, kernels: int) -> None:
    """Four products, attention, the activation and two times add and norm. OPT's ReLU is part of a product. Pythia has
    two norms of one input and adds both branches at once: one add and norm is ours, the other norm and sum are XLA's.
    """
    assert of_a_layer(facts, model, "kernels") == kernels


@pytest.mark.parametrize("model", STEPS)
def test_a_layer_has_four_products_and_what_we_write_by_hand(facts: FactsByProgram, model: str) -> None:
    assert of_a_layer(facts, model, "products") == 4
    assert of_a_layer(facts, model, "custom") == (2 if model == "pythia" else 3)  # attention; add and norm, twice


@pytest.mark.parametrize("model", STEPS)
def test_xla_leaves_less_than_a_third_of_the_operations(facts: FactsByProgram, model: str) -> None:
    before, after = (of_a_layer(facts, model, fact) for fact in ("lowered", "optimised"))
    assert after == of_a_layer(facts, model, "kernels")  # nothing but kernels is left
    assert 3 * after < before < 200


def test_the_table_tells_a_layer_from_the_rest() -> None:
    counts = {"lowered": 1293, "optimised": 265, "fusions": 169, "products": 128, "custom": 96, "kernels": 264}
    whole = {**counts, "temporaries": 3 << 20, "launched": ["CommandBuffer"]}
    row = {"model": "Llama", "layers": 32, "step": "decode", "whole": whole, "few": {"kernels": 40}}
    cells = "Llama | decode | 1293 | 265 | 169 | 128 | 96 | 264 = 8 a layer + 8 | 3.0 MiB | one graph"
    assert table.text([row]).splitlines()[2] == f"| {cells} |"
    assert len({line.count("|") for line in table.text([row]).splitlines()}) == 1

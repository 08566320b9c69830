"""What the compiler makes of layers of experts on an H200, with none at hand: at the shapes of Mixtral-8x7B,
Qwen3-30B-A3B and gpt-oss-20b.
"""

from typing import Any

import pytest

from tests.gpu_compile import toolchain
from tests.jaxengine.ops.h200_experts import LAYERS, MODELS
from tests.jaxengine.ops.test_triton_h200 import AMPERE_SHARED

pytestmark = pytest.mark.slow

SPLIT = [name for name in LAYERS if "devices" in name]
IN_8_BITS = [name for name in LAYERS if name.endswith(("int8", "fp8"))]
GROUPED = [name for name in LAYERS if name.endswith(("4", "zeros", "blocks", "int4 in f32"))]
ONE_DEVICE = [name for name in LAYERS if "devices" not in name]
FactsByLayer = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> FactsByLayer:
    return toolchain.facts("tests.jaxengine.ops.h200_experts", tmp_path_factory)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_copies_no_matrix_and_is_one_cuda_graph(facts: FactsByLayer, name: str) -> None:
    layer = facts[name]["layer"]
    assert (layer["copies"], layer["rewrites"], layer["launched"]) == ([], [], ["CommandBuffer"])


@pytest.mark.parametrize("name", ONE_DEVICE)
def test_temporaries_are_the_pairs_two_rows(facts: FactsByLayer, name: str) -> None:
    """An inner row and an output row of each pair: nothing is gathered, sorted or padded, let alone all experts."""
    spec, tokens = MODELS[name.partition(",")[0]], int(name.split()[1])
    assert spec.experts is not None
    pairs, itemsize = tokens * spec.experts.used, 4 if "f32" in name else 2
    rows = pairs * (spec.experts.ffn_size + spec.hidden_size) * itemsize
    assert facts[name]["layer"]["temporaries"] < 1.05 * rows + (1 << 20)


@pytest.mark.parametrize("name", LAYERS)
def test_the_kernels_spill_nothing_wait_for_nothing_and_fit_the_smallest_gpu_we_serve(
    facts: FactsByLayer, name: str
) -> None:
    kernels = facts[name]["kernels"]
    assert sorted(kernels) == ["experts_down", "experts_up"]
    for kernel in kernels.values():
        assert (kernel["spilled"], kernel["shared"] <= AMPERE_SHARED) == (0, True)
        assert (kernel["serialised"], kernel["awaited"]) == (False, 0)
        assert kernel["wide_copies"] >= kernel["narrow_copies"] or name in GROUPED  # whose scales are few bytes


@pytest.mark.parametrize(("name", "instruction"), [("128", "mma.sync"), ("1024", "wgmma.mma_async")])
def test_many_rows_run_on_hoppers_own_tensor_core_instruction(facts: FactsByLayer, name: str, instruction: str) -> None:
    kernels = facts[f"qwen3, {name} tokens"]["kernels"]
    assert [kernel["products"] for kernel in kernels.values()] == [[instruction]] * 2


@pytest.mark.parametrize(("name", "most"), [("mixtral, 1 token", 9), ("gpt-oss, 1 token, mxfp4", 10)])
def test_one_token_is_few_kernels(facts: FactsByLayer, name: str, most: int) -> None:
    """The router's product, softmax and choice among them (JAX 0.10.2). gpt-oss' biases add one in all."""
    assert facts[name]["layer"]["kernels"] <= most


@pytest.mark.parametrize("name", SPLIT)
def test_a_split_layer_communicates_once(facts: FactsByLayer, name: str) -> None:
    assert facts[name]["layer"]["collectives"] == {"all-reduce": 1}


@pytest.mark.parametrize("name", IN_8_BITS)
def test_experts_in_8_bits_are_read_as_they_lie_by_the_same_kernels(facts: FactsByLayer, name: str) -> None:
    """No expert is ever written out in more bits, and scales are applied where the products are made."""
    ours, plain = facts[name], facts[name.rpartition(", ")[0]]
    for count in ("kernels", "temporaries"):
        assert ours["layer"][count] == plain["layer"][count]
    for kernel, found in ours["kernels"].items():
        assert found["products"] == plain["kernels"][kernel]["products"]


@pytest.mark.parametrize("name", GROUPED)
def test_codes_of_experts_go_from_registers_to_hopper_s_tensor_cores(facts: FactsByLayer, name: str) -> None:
    """Also those of a lone token. The kernels around them are those of 16 bits, and nothing is written beside them."""
    assert {instruction for kernel in facts[name]["kernels"].values() for instruction in kernel["products"]} == {
        "wgmma.mma_async"
    }
    plain = ", ".join(name.split(", ")[:-1])
    if plain in LAYERS and "f32" not in name:
        for count in ("kernels", "temporaries"):
            assert facts[name]["layer"][count] <= facts[plain]["layer"][count]

"""What the compiler makes of the product with grouped formats on an H200, with none at hand."""

from typing import Any

import pytest

from jaxengine.ops.triton import dequantised
from tests.gpu_compile import toolchain
from tests.jaxengine.ops.h200_grouped import CHUNKS, INPUTS, OUTPUTS, PRODUCTS

pytestmark = pytest.mark.slow

A100_SHARED, AMPERE_SHARED = 163 << 10, 99 << 10  # what a program may take there, and on the smallest GPU we serve
SIXTEEN_BITS = [name for name in PRODUCTS if not name.endswith("f32")]
Facts = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return toolchain.facts("tests.jaxengine.ops.h200_grouped", tmp_path_factory)  # type: ignore[no-any-return]


@pytest.mark.parametrize("product", SIXTEEN_BITS)
def test_codes_go_from_registers_to_hopper_s_tensor_cores(facts: Facts, product: str) -> None:
    assert facts[product]["products"] == ["wgmma.mma_async"]
    assert facts[product]["spilled"] == 0


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_kernel_fits_the_smallest_gpu_we_serve(facts: Facts, product: str) -> None:
    """Where many tokens are multiplied at once, an A100."""
    many = product in ("256 tokens", "256 tokens, table", "256 tokens, fp8")
    assert facts[product]["shared"] <= (A100_SHARED if many else AMPERE_SHARED)


@pytest.mark.parametrize("product", PRODUCTS)
def test_memory_holds_the_sums_of_the_splits_and_no_weight(facts: Facts, product: str) -> None:
    tokens = int(product.split()[0])
    sums = 4 * 4 * tokens * OUTPUTS if tokens <= 64 else 0
    assert facts[product]["temporaries"] <= sums + (64 << 10) < INPUTS * OUTPUTS // 2


@pytest.mark.parametrize("product", ["1 token", "64 tokens"])
def test_a_split_counts_as_finished_after_its_stores_and_before_the_sum_s_loads(facts: Facts, product: str) -> None:
    assert facts[product]["atomics"] == ["atom.global.gpu.acq_rel.add.u32"]


@pytest.mark.parametrize("name", CHUNKS)
def test_a_chunk_is_written_from_registers_and_takes_the_place_of_the_one_before(facts: Facts, name: str) -> None:
    assert facts[name]["spilled"] == 0 and facts[name]["products"] == []
    assert facts[name]["registers"] <= 128  # four programs of 128 threads at least
    results = 2 * 2 * 2048 * OUTPUTS if name == "int4" else 0  # of two chunks
    assert facts[name]["temporaries"] <= dequantised.CHUNK + results + (64 << 10)

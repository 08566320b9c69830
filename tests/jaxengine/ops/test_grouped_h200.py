"""What the compiler makes of the product with grouped formats on an H200, with none at hand."""

from typing import Any

import pytest

from jaxengine.ops.triton import dequantised
from jaxengine.ops.triton.grouped import A100_SHARED, HOPPER_SHARED
from tests.gpu_compile import toolchain
from tests.jaxengine.ops.h200_grouped import B200S, CHUNKS, INPUTS, OUTPUTS, PRODUCTS, TWO_CHUNKS

pytestmark = pytest.mark.slow

AMPERE_SHARED = 99  # KiB that a program may take on the smallest GPU we serve
LARGE = ("128 tokens, gated, many outputs", "128 tokens, table, gated, many outputs")  # 255 registers, all there are
LITTLE_SPILLED = 64  # bytes
SIXTEEN_BITS = [name for name in PRODUCTS if not name.endswith("f32")]
LITTLE = 64 << 10  # bytes
SUMS, MAX_SPLITS = 4 << 20, 8  # bytes: there are splits where there are few tiles, so few sums
Facts = dict[str, dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return toolchain.facts("tests.jaxengine.ops.h200_grouped", tmp_path_factory)  # type: ignore[no-any-return]


@pytest.mark.parametrize("product", SIXTEEN_BITS)
def test_codes_go_from_registers_to_hopper_s_tensor_cores(facts: Facts, product: str) -> None:
    """Programs of two warps, of many outputs and few tokens, use the instructions that all GPUs have."""
    two_warps = product.endswith("many outputs") and int(product.split()[0]) <= 16
    assert facts["products"][product]["products"] == ["mma.sync" if two_warps else "wgmma.mma_async"]
    assert facts["products"][product]["spilled"] <= (LITTLE_SPILLED if product in LARGE else 0)


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_step_waits_neither_for_scales_nor_for_each_of_its_products(facts: Facts, product: str) -> None:
    """A load of a scale that the same step needs takes as long as the memory, where the step's own words are there."""
    assert facts["products"][product]["awaited"] == 0
    assert not facts["products"][product]["serialised"]


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_kernel_fits_the_gpu_that_it_is_for(facts: Facts, product: str) -> None:
    """Large tiles of 4 bits a Hopper; from 64 tokens on others an A100; and where told so the smallest we serve."""
    many = int(product.split()[0]) >= 64 and "99 KiB" not in product and "f32" not in product
    limit = HOPPER_SHARED if product in LARGE else A100_SHARED if many else AMPERE_SHARED
    assert facts["products"][product]["shared"] <= limit << 10


@pytest.mark.parametrize("product", PRODUCTS)
def test_memory_holds_the_sums_of_the_splits_and_no_weight(facts: Facts, product: str) -> None:
    tokens = int(product.split()[0])
    sums = min(4 * MAX_SPLITS * tokens * OUTPUTS, SUMS) if tokens <= 128 else 0
    assert facts["products"][product]["temporaries"] <= sums + LITTLE < INPUTS * OUTPUTS // 2


@pytest.mark.parametrize("product", ["1 token", "16 tokens, int8", "64 tokens", "128 tokens"])
def test_a_split_counts_as_finished_after_its_stores_and_before_the_sum_s_loads(facts: Facts, product: str) -> None:
    assert facts["products"][product]["atomics"] == ["atom.global.gpu.acq_rel.add.u32"]


@pytest.mark.parametrize("name", B200S)
def test_a_b200_has_tensor_memory_enough(facts: Facts, name: str) -> None:
    """XLA refuses to compile what takes more."""
    assert name in facts["b200"]


@pytest.mark.parametrize("name", CHUNKS)
def test_a_chunk_is_written_from_registers(facts: Facts, name: str) -> None:
    found = facts["chunks"][name]
    assert found["spilled"] == 0 and found["products"] == []
    assert found["registers"] <= 128  # four programs of 128 threads at least


@pytest.mark.parametrize("name", CHUNKS)
def test_a_chunk_takes_the_place_of_the_one_before(facts: Facts, name: str) -> None:
    """Results of two chunks are joined."""
    two = name == "two chunks"
    held = dequantised.CHUNK + 2 * 2048 * TWO_CHUNKS if two else 2 * INPUTS * OUTPUTS
    assert facts["chunks"][name]["temporaries"] <= held + LITTLE

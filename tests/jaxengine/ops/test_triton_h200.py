"""What the compiler makes of the attention kernels on an H200, with none at hand.

A kernel that spills registers, loads two bytes at a time or leaves the tensor cores is still correct, only slow.
"""

from typing import Any

import jax
import pytest

from tests.gpu_compile import toolchain
from tests.jaxengine.ops.h200_kernels import STEPS

pytestmark = pytest.mark.slow

AMPERE_SHARED = 99 << 10  # what a program may take on the smallest GPU we serve, compute capability 8.6 and 8.9
FactsByStep = dict[str, dict[str, Any]]
REGISTERS, SHARED = 65536, 227 << 10  # of a multiprocessor, the latter in bytes
THREADS = 128  # of a program of few query heads
GATHERING = (
    "fp8 cache",
    "decode 64, fp8 cache",
    "encoder",
    "decoder with relative positions",
)  # relative positions, a number a score
SIXTEEN_BITS = [name for name in STEPS if not name.endswith("f32")]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> FactsByStep:
    return toolchain.facts("tests.jaxengine.ops.h200_kernels", tmp_path_factory)


@pytest.mark.parametrize("step", STEPS)
def test_no_kernel_spills(facts: FactsByStep, step: str) -> None:
    """But for a few registers before the loops and behind them; and under JAX 0.12, 64 bytes in prefill of f32."""
    later = jax.__version_info__ >= (0, 12)
    most = 64 if later and step == "f32" else 32
    spilled = {name: kernel["spilled"] for name, kernel in facts[step]["kernels"].items()}
    assert {name: count for name, count in spilled.items() if count > most} == {}


@pytest.mark.parametrize("step", [name for name in STEPS if name not in GATHERING])
def test_a_block_of_keys_waits_neither_for_memory_nor_for_each_product(facts: FactsByStep, step: str) -> None:
    waits = {name: (kernel["serialised"], kernel["awaited"]) for name, kernel in facts[step]["kernels"].items()}
    assert set(waits.values()) == {(False, 0)}


@pytest.mark.parametrize("step", [name for name in STEPS if name not in GATHERING])
def test_keys_and_values_arrive_16_bytes_at_a_time(facts: FactsByStep, step: str) -> None:
    """Asynchronously, so that the next block is on its way while this one is used. The narrow ones are page numbers."""
    for name, kernel in facts[step]["kernels"].items():
        if name != "rotate_and_write":
            assert kernel["wide_copies"] >= 16 > kernel["narrow_copies"], name


@pytest.mark.parametrize("step", STEPS)
def test_every_kernel_fits_the_smallest_gpu_we_serve(facts: FactsByStep, step: str) -> None:
    assert max(kernel["shared"] for kernel in facts[step]["kernels"].values()) <= AMPERE_SHARED


@pytest.mark.parametrize("step", ["decode 1, narrow table", "decode 128, wide table"])
def test_a_multiprocessor_runs_three_programs_of_a_decode_step_at_once(facts: FactsByStep, step: str) -> None:
    """What one has asked of memory is on its way while another computes."""
    kernel = facts[step]["kernels"]["paged_decode"]
    assert 3 * THREADS * kernel["registers"] <= REGISTERS
    assert 3 * kernel["shared"] <= SHARED


@pytest.mark.parametrize("step", SIXTEEN_BITS)
def test_prefill_runs_on_hoppers_own_tensor_core_instruction(facts: FactsByStep, step: str) -> None:
    """So does decode where a key has as many query heads as it multiplies at a time, 64 in a tile."""
    kernels = facts[step]["kernels"]
    many = step.endswith("heads a key")
    assert kernels["paged_decode"]["products"] == ["wgmma.mma_async" if many else "mma.sync"]
    if "paged_prefill" in kernels:  # a tile of heads of 512 has 32 rows, which is less than that instruction takes
        own = "mma.sync" if step == "head_dim 512" else "wgmma.mma_async"
        assert kernels["paged_prefill"]["products"] == [own]


@pytest.mark.parametrize("step", ["decode 128", "mixed 2048"])
def test_memory_does_not_depend_on_the_width_of_the_table(facts: FactsByStep, step: str) -> None:
    """A mixed step has its rotated queries, 16 MiB, and as much for shares; both go before the MLP is computed."""
    narrow, wide = (facts[f"{step}, {width} table"]["temporaries"] for width in ("narrow", "wide"))
    assert narrow == wide < 33 << 20


def test_decode_is_one_kernel_and_a_mixed_step_three(facts: FactsByStep) -> None:
    decode, mixed = facts["decode 128, wide table"], facts["mixed 2048, wide table"]
    assert sorted(decode["kernels"]) == ["paged_decode"]
    assert sorted(mixed["kernels"]) == ["paged_decode", "paged_prefill", "rotate_and_write"]
    assert mixed["launched"] == ["CommandBuffer"]


def test_a_share_counts_as_finished_after_its_stores_and_before_the_merge_s_loads(facts: FactsByStep) -> None:
    """A barrier joins the threads' stores, and the count itself is a release and an acquire for the whole GPU."""
    assert facts["decode 128, wide table"]["kernels"]["paged_decode"]["atomics"] == ["atom.global.gpu.acq_rel.add.u32"]

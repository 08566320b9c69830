"""What the compiler makes of the attention kernels over latents on an H200, with none at hand."""

import pytest

from tests.gpu_compile import toolchain
from tests.jaxengine.ops.h200_latent import STEPS
from tests.jaxengine.ops.test_triton_h200 import AMPERE_SHARED, FactsByStep

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> FactsByStep:
    return toolchain.facts("tests.jaxengine.ops.h200_latent", tmp_path_factory)


@pytest.mark.parametrize("step", STEPS)
def test_kernels_spill_nothing_and_fit_the_smallest_gpu_we_serve(facts: FactsByStep, step: str) -> None:
    """But for a few registers before the loops and behind them."""
    kernels = facts[step]["kernels"].values()
    assert max(kernel["spilled"] for kernel in kernels) <= 32
    assert max(kernel["shared"] for kernel in kernels) <= AMPERE_SHARED


@pytest.mark.parametrize("step", [name for name in STEPS if "fp8" not in name])
def test_latents_arrive_16_bytes_at_a_time_and_no_product_waits_for_them(facts: FactsByStep, step: str) -> None:
    for name, kernel in facts[step]["kernels"].items():
        assert kernel["wide_copies"] >= 16 and kernel["products"], name
        assert (kernel["serialised"], kernel["awaited"]) == (False, 0), name

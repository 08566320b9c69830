"""Steps of models that cache latents: DeepSeek V3 over eight devices, each with a copy of the one head that is cached
and a share of the heads that read it, and GLM 4.7 Flash on one.
"""

import pytest

from tests.gpu_compile.conftest import FactsByProgram

pytestmark = pytest.mark.slow

STEPS = ("decode_deepseek_tp8", "mixed_deepseek_tp8", "decode_glm_flash")


@pytest.mark.parametrize("step", STEPS)
def test_latents_are_written_in_place_and_nothing_large_is_written_twice(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["aliased"] == facts[step]["donated"] > 0
    assert facts[step]["copies"] == facts[step]["rewrites"] == []


@pytest.mark.parametrize("step", STEPS)
def test_the_host_launches_one_cuda_graph_a_step(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["launched"] == ["CommandBuffer"]


@pytest.mark.parametrize("step", STEPS[:2])
def test_devices_sum_each_branch_once_and_exchange_nothing_else(facts: FactsByProgram, step: str) -> None:
    """The embedding too, whose rows are split."""
    assert facts[step]["collectives"] == {"all-reduce": 2 * 2 + 1}

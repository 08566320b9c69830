"""What is decided before the first weight is read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from convert.source import OpenModel, open_model
from jaxengine.device import DeviceTraits
from jaxengine.options.table import EngineOptions
from jaxengine.startup.defaults import derive_limits
from jaxengine.startup.place import DoesNotFit
from jaxengine.startup.setup import Setup
from jaxengine.startup.sizing import size
from tests.shapes import H200
from tests.tiny_quantized import write_gpt_oss


def test_no_number_of_devices_means_all_in_any_process(tiny: Callable[[str], Path]) -> None:
    setup = Setup.decide(open_model(str(tiny("llama2_gqa"))), EngineOptions(tensor_parallel=0))
    assert setup.mesh.size == jax.local_device_count()


def test_a_gpu_s_engine_widens_experts_that_its_kernels_cannot_read(
    zoo: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_gpt_oss(zoo("gpt_oss"), tmp_path) / "mxfp4"
    monkeypatch.setattr(DeviceTraits, "of", lambda _: H200)
    setup = Setup.decide(open_model(str(directory)), EngineOptions(tensor_parallel=1))
    assert setup.spec.experts is not None and setup.spec.experts.ffn_size == 64
    assert {format.name for format in setup.formats.values()} == {"mxfp4"}


@pytest.fixture
def llama(tiny: Callable[[str], Path]) -> OpenModel:
    return open_model(str(tiny("llama2_gqa")))


def test_a_pool_beyond_a_host_s_memory_is_refused_by_its_option(llama: OpenModel) -> None:
    """Else the process is ended while the pool is filled, or says only how much it could not get."""
    setup = Setup.decide(llama, EngineOptions(max_batch_total_tokens=2**31 - 1))
    with pytest.raises(
        DoesNotFit, match=r"max_batch_total_tokens 2147483647 needs a cache of .* GiB, this machine has"
    ):
        size(setup, derive_limits(setup.options, setup.spec, setup.device))


def test_what_means_nothing_to_a_model_is_said(
    llama: OpenModel, seq2seq: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    given = EngineOptions(max_image_patches=64, image_cache_tokens=64, state_snapshots=4, pooling="mean")
    Setup.decide(llama, given).log_decisions()
    assert caplog.messages == [
        *(
            f"--{name} has no effect: this model sees no pictures"
            for name in ("max-image-patches", "image-cache-tokens")
        ),
        "--state-snapshots has no effect: no layer of this model keeps states",
    ]
    caplog.clear()
    Setup.decide(open_model(str(seq2seq("flan_t5"))), EngineOptions(pooling="mean")).log_decisions()
    assert caplog.messages == ["--pooling has no effect: no embeddings are made of this model's hidden states"]


def test_where_prompts_share_nothing_snapshots_mean_nothing(
    zoo: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A state space has nothing but states, and there is no prefix cache."""
    said = "--state-snapshots has no effect: prompts share nothing, as there is no prefix cache"
    given = EngineOptions(state_snapshots=4)
    Setup.decide(open_model(str(zoo("mamba"))), given).log_decisions()
    assert caplog.messages[-1] == said
    caplog.clear()
    lfm2 = open_model(str(zoo("lfm2")))
    Setup.decide(lfm2, given).log_decisions()
    assert caplog.messages == []
    Setup.decide(lfm2, replace(given, prefix_cache=False)).log_decisions()
    assert caplog.messages == [said]

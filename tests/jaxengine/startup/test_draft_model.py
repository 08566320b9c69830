"""A draft model that cannot draft for a model is refused before anything is read, and one that can is counted."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from convert.source import open_model
from jaxengine.architecture.drafter import DraftModel, DraftModelSource
from jaxengine.architecture.model import Head, LayerKind, ModelSpec, Traced
from jaxengine.architecture.parameters import ParameterSource
from jaxengine.device import CPU, DeviceTraits
from jaxengine.options.table import EngineOptions
from jaxengine.startup.build import Setup
from jaxengine.startup.defaults import derive_limits
from jaxengine.startup.draft_model import fitted
from jaxengine.startup.memory import draft_page_bytes, page_bytes
from tests.shapes import FALCON_MAMBA_7B, FLAN_T5_XL, GEMMA2_9B, H200, LLAMA_8B, LLAMA_70B

CONFIG = {"method": "draft_model", "model": "draft", "num_speculative_tokens": 2}
WINDOWS = replace(LLAMA_8B, kinds=(LayerKind(window=4096),))
SMALL = replace(LLAMA_8B, num_layers=2, num_kv_heads=2, num_heads=8)
ODD = replace(SMALL, head_dim=20, kinds=(LayerKind(),))


@dataclass(frozen=True)
class Described:
    """A `ParameterSource` without parameters."""

    spec: ModelSpec


def fit(draft: ModelSpec, target: ModelSpec = LLAMA_70B, devices: int = 1, device: DeviceTraits = CPU) -> ModelSpec:
    source = DraftModelSource(cast(ParameterSource, Described(draft)))
    return fitted(source, target, "auto", devices, device, "bfloat16").spec.spec


@pytest.mark.parametrize(
    ("draft", "target", "problem"),
    [
        (FALCON_MAMBA_7B, LLAMA_8B, "its layers keep states, which cannot take a wrong guess back"),
        (FLAN_T5_XL, LLAMA_8B, "a model with an encoder cannot draft, and none can draft for it"),
        (LLAMA_8B, FLAN_T5_XL, "a model with an encoder cannot draft, and none can draft for it"),
        (replace(LLAMA_8B, traced=Traced("{}", "", ())), LLAMA_8B, "transformers' own module cannot draft"),
        (LLAMA_8B, WINDOWS, "all layers of the model have windows"),
        (LLAMA_8B, GEMMA2_9B, "its vocabulary of 128256 lacks some of the model's 256000 tokens"),
    ],
)
def test_a_model_that_cannot_draft_for_another_is_refused_with_the_reason(
    draft: ModelSpec, target: ModelSpec, problem: str
) -> None:
    with pytest.raises(ValueError, match=f"^draft model: .*{problem}"):
        fit(draft, target)


def test_what_can_draft_does() -> None:
    assert fit(LLAMA_8B) == LLAMA_8B
    assert fit(WINDOWS) == WINDOWS  # its own windows are masks
    assert fit(LLAMA_8B, replace(LLAMA_70B, vocab_size=130_000, head=Head(tokens=128_000))) == LLAMA_8B
    assert fit(LLAMA_8B, replace(GEMMA2_9B, vocab_size=128_256)) == LLAMA_8B  # some of whose layers have windows


def test_it_is_split_over_the_devices_that_the_model_is_split_over() -> None:
    assert fit(SMALL, devices=8).num_kv_heads == 8  # copied
    with pytest.raises(ValueError, match=r"^draft model: num_kv_heads 2 cannot be split over 3 devices"):
        fit(SMALL, devices=3)


def test_the_kernels_must_be_able_to_run_it() -> None:
    assert fit(ODD) == ODD
    with pytest.raises(ValueError, match=r"^draft model: attention 'auto': triton supports head_dim"):
        fit(ODD, device=H200)


def test_its_pages_and_weights_are_counted(tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_model(str(tiny("llama2_gqa")))
    spec = opened.source.spec
    assert draft_page_bytes(DraftModel(spec, 2), 16, "float32", 1) == page_bytes(spec, 16, "float32", 1)
    assert draft_page_bytes(None, 16, "float32", 1) == 0
    monkeypatch.setattr("jaxengine.startup.memory.CPU_POOL_BYTES", 100 * page_bytes(spec, 16, "float32", 1))

    def pages(**drafter: Any) -> int:
        options = EngineOptions(max_total_tokens=64, speculative_config=CONFIG if drafter else None)  # type: ignore[arg-type]
        setup = Setup.decide(replace(opened, **drafter), options)
        limits = derive_limits(options, setup.spec, setup.device, setup.drafter)
        return setup.size(limits)[1]

    assert pages() == 100 and pages(drafter=DraftModelSource(opened.source)) == 50


def test_how_many_tokens_it_guesses_must_be_said(tiny: Callable[[str], Path]) -> None:
    opened = open_model(str(tiny("llama2_gqa")))
    model = replace(opened, drafter=DraftModelSource(opened.source))
    with pytest.raises(ValueError, match="must have num_speculative_tokens"):
        Setup.decide(model, EngineOptions(speculative_config={"model": "draft"}))  # type: ignore[arg-type]

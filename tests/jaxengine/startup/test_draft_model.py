"""A draft model that cannot draft for a model is refused before anything is read, and one that can is counted."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from convert.mapping.composition import SourceWithSpec
from convert.source import open_model
from jaxengine.architecture.drafter import DrafterSource, DraftModel, DraftModelSource, Eagle
from jaxengine.architecture.model import Head, LayerKind, ModelSpec, Traced
from jaxengine.architecture.parameters import ParameterSource
from jaxengine.device import CPU, DeviceTraits
from jaxengine.options.table import EngineOptions
from jaxengine.startup.defaults import derive_limits, resolve_speculation
from jaxengine.startup.draft_model import fitted
from jaxengine.startup.memory import draft_page_bytes, page_bytes
from jaxengine.startup.setup import Setup
from jaxengine.startup.sizing import size
from tests.shapes import FALCON_MAMBA_7B, FLAN_T5_XL, GEMMA2_9B, H200, LLAMA_8B, LLAMA_70B

CONFIG = {"method": "draft_model", "model": "draft", "num_speculative_tokens": 2}
WINDOWS = replace(LLAMA_8B, kinds=(LayerKind(window=4096),))
SMALL = replace(LLAMA_8B, num_layers=2, num_kv_heads=2, num_heads=8)
ODD = replace(SMALL, head_dim=20, kinds=(LayerKind(),))


@dataclass(frozen=True)
class Described:
    """A `ParameterSource` without parameters."""

    spec: ModelSpec | Eagle


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
        (LLAMA_8B, FALCON_MAMBA_7B, "no layer of the model attends, so it keeps no page for each token"),
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
        return size(setup, limits)[1]

    assert pages() == 100 and pages(drafter=DraftModelSource(opened.source)) == 50


EAGLE3 = Eagle(replace(LLAMA_8B, num_layers=1), LLAMA_8B.hidden_size, LLAMA_8B.vocab_size, taps=(2, 16, 29))


def fit_eagle(target: ModelSpec, devices: int = 1, spec: Eagle = EAGLE3) -> DrafterSource:
    return fitted(cast(DrafterSource, Described(spec)), target, "auto", devices, CPU, "bfloat16")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "devices", "problem"),
    [
        (FLAN_T5_XL, 1, "for a model with an encoder none can draft"),
        (replace(LLAMA_8B, traced=Traced("{}", "", ())), 1, "transformers' own module, of which no hidden states"),
        (WINDOWS, 1, "all layers of the model have windows"),
        (LLAMA_8B, 3, "num_kv_heads 8 cannot be split over 3 devices"),
    ],
)
def test_layers_of_eagle_that_cannot_draft_for_a_model_are_refused_with_the_reason(
    target: ModelSpec, devices: int, problem: str
) -> None:
    with pytest.raises(ValueError, match=f"^eagle3: .*{problem}"):
        fit_eagle(target, devices)
    with pytest.raises(ValueError, match=f"^eagle: .*{problem}"):
        fit_eagle(target, devices, replace(EAGLE3, taps=()))


def test_layers_of_eagle_that_can_draft_do() -> None:
    assert fit_eagle(LLAMA_8B).spec == fit_eagle(GEMMA2_9B, 8).spec == EAGLE3


@pytest.mark.parametrize("options", [{"speculate": 0}, {"speculative_config": '{"method": "suffix"}'}])
def test_what_does_not_draft_need_not_fit(tiny: Callable[[str], Path], options: dict[str, Any]) -> None:
    opened = open_model(str(tiny("llama2_gqa")))
    spec = replace(EAGLE3, spec=replace(EAGLE3.spec, num_kv_heads=1, num_heads=7))
    windows = replace(opened.source.spec, kinds=(replace(opened.source.spec.kinds[0], window=16),))
    model = replace(opened, source=SourceWithSpec(opened.source, windows), drafter=cast(DrafterSource, Described(spec)))
    setup = Setup.decide(model, EngineOptions(**options))
    assert setup.drafter is None and setup.drafter_source is None
    with pytest.raises(ValueError, match=r"^eagle3: all layers of the model have windows"):
        Setup.decide(model, EngineOptions(speculate=2))


def test_features_are_counted_on_each_device() -> None:
    """8 key/value heads of 128 numbers, keys and values, and 4,096 numbers of a feature."""
    assert draft_page_bytes(EAGLE3, 16, "bfloat16", 1) == 16 * (2 * 8 * 128 + 4096) * 2
    assert draft_page_bytes(EAGLE3, 16, "bfloat16", 8) == 16 * (2 * 128 + 4096) * 2


@pytest.mark.parametrize(("usual", "asked", "most"), [(5, None, 5), (5, 2, 2), (None, 4, 4)])
def test_eagle_guesses_as_many_tokens_as_is_said_or_its_files_say(
    usual: int | None, asked: int | None, most: int
) -> None:
    config = {"method": "eagle3"} | ({"num_speculative_tokens": asked} if asked else {})
    options = EngineOptions(speculative_config=config)  # type: ignore[arg-type]
    found = resolve_speculation(options, replace(EAGLE3, usual=usual))
    assert found is not None and found.num_speculative_tokens == most


def test_eagle_must_be_told_how_many_tokens_it_guesses_where_its_files_do_not_say() -> None:
    with pytest.raises(ValueError, match="method 'eagle3' could guess on for ever, so it must have num_speculative_t"):
        resolve_speculation(EngineOptions(), EAGLE3)
    with pytest.raises(ValueError, match="method 'eagle', but the model's drafter is 'eagle3'"):
        resolve_speculation(EngineOptions(speculative_config={"method": "eagle"}), EAGLE3)  # type: ignore[arg-type]


def test_how_many_tokens_it_guesses_must_be_said(tiny: Callable[[str], Path]) -> None:
    opened = open_model(str(tiny("llama2_gqa")))
    model = replace(opened, drafter=DraftModelSource(opened.source))
    with pytest.raises(ValueError, match="must have num_speculative_tokens"):
        Setup.decide(model, EngineOptions(speculative_config={"model": "draft"}))  # type: ignore[arg-type]

"""How an engine in-process is loaded: drafters, names of options, what is shown meanwhile."""

import dataclasses
from pathlib import Path

import pytest

from jaxengine.llm import LLM
from jaxengine.llm.load_bars import LoadBars
from jaxengine.llm.options import VLLM, engine_options
from jaxengine.options.table import EngineOptions
from jaxengine.request.interface import LOADING
from tests.jaxengine.engines import prompt
from tests.jaxengine.llm.greedy import GREEDY
from tests.tiny import VOCAB, reference_greedy
from tests.tiny_drafters import write_medusa


@pytest.mark.parametrize("named", [True, False])
def test_a_drafter_may_be_the_model_or_stand_beside_it(named: bool, directory: Path, tmp_path: Path) -> None:
    heads = write_medusa(tmp_path / "heads", str(directory), 64, VOCAB)
    beside = {"model": directory, "speculative_config": {"method": "medusa", "model": heads}}
    llm = LLM(**({"model": heads} if named else beside), max_batch_size=4, max_batch_prefill_tokens=32)
    assert llm.engine.description.max_draft_tokens == 3
    ids = prompt(9)
    assert llm.generate([ids], GREEDY)[0].token_ids == reference_greedy(directory, ids, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_sise": 3}, r"LLM has no option 'max_batch_sise' \(did you mean max_batch_size\?\)"),
        ({"max_model_len": 3, "max_total_tokens": 3}, "max_model_len is vLLM's name of max_total_tokens"),
    ],
)
def test_an_option_that_does_not_exist_is_named(directory: Path, options: dict[str, int], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        LLM(directory, **options)


def test_vllms_names_of_options_mean_ours() -> None:
    theirs = engine_options({"max_model_len": 64, "quantization": "int8", "enable_prefix_caching": False})
    assert theirs == EngineOptions(max_total_tokens=64, quantize="int8", prefix_cache=False)
    assert {*VLLM.values()} <= {row.name for row in dataclasses.fields(EngineOptions)}


def test_loading_and_compiling_are_shown_unless_they_are_not_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    for shown in (True, False):
        with LoadBars(shown=shown) as bars:
            for done in (0, 2_000_000):
                bars.show(LOADING, done, 2_000_000)
            bars.show("compiling", 3, 3)
        told = capsys.readouterr().err
        assert all((part in told) is shown for part in ("loading: 100%", "2.00M/2.00M", "compiling: 100%", "3/3"))

"""Drafts change nothing in models that see positions, windows, encoders, experts or adapters in ways of their own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from jaxengine.engine.engine import Engine
from jaxengine.request.sequence import Request
from tests.jaxengine.drafting import assert_same, drafting, plain
from tests.jaxengine.engines import ask, load, prompt, serve
from tests.tiny_adapter import adapted

pytestmark = pytest.mark.slow

Checkpoints = Callable[[str], Path]
SMALL = {"max_batch_size": 2, "max_batch_prefill_tokens": 16, "speculate": 3}
DRAFTS = {"kinds": ("right", "turning", "turning", "wrong"), "share": 0.9, "waiting": 0.9}
FAMILIES = {
    "gemma3_text": "windows in some layers",
    "falcon_rw": "ALiBi",
    "gpt2": "learned positions",
    "mixtral": "experts",
    "qwen3_5": "linear attention",
    "granite_hybrid": "Mamba 2",
    "falcon_h1": "Mamba 2 beside attention",
    "lfm2": "short convolutions",
    "mamba": "states alone",
}


def requests(**chosen: object) -> list[Request]:
    """Of texts longer than every window and trained length; more than rows, some of them drawn with penalties."""
    ways = [{}, {"temperature": 1.0, "repetition_penalty": 1.2}, {"temperature": 0.8, "logprobs": 2}, {}]
    return [
        ask(number, prompt(5 + 11 * number, seed=number), max_tokens=50, **way, **chosen)
        for number, way in enumerate(ways)
    ]


def check(engine: Engine, asked: list[Request], within: float = 1e-4) -> None:
    expected = plain(engine, asked)
    for seed in range(2):
        with drafting(engine, expected, seed, **DRAFTS) as drafts:  # type: ignore[arg-type]
            answers = serve(engine, asked)
        for request in asked:
            assert_same(answers[request.id], expected[request.id], request, within)
        assert drafts.draft_tokens > 40 and sum(drafts.accepted) > 20
    assert engine.stats().compiles_after_warmup == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_answered_as_without_drafts(name: str, zoo: Checkpoints, compile_cache: None) -> None:
    """Linear attention rounds otherwise in chunks than token by token: 1.4e-4 was seen."""
    check(load(zoo(name), every_bucket=True, **SMALL), requests(), within=1e-3 if name == "qwen3_5" else 1e-4)


def test_a_model_with_an_encoder_is_answered_as_without_drafts(seq2seq: Checkpoints, compile_cache: None) -> None:
    check(load(seq2seq("flan_t5"), every_bucket=True, **SMALL), requests())


def test_drafts_end_where_a_text_s_keys_are_computed_anew(zoo: Checkpoints, compile_cache: None) -> None:
    """Beyond 16 tokens, the rotary frequencies are others."""
    engine = load(zoo("phi3_longrope"), every_bucket=True, **SMALL)
    assert engine.scheduler.rope_switch_length == 16
    short = [ask(number, prompt(3 + 2 * number, seed=number), max_tokens=30) for number in range(6)]
    before = engine.scheduler.preemptions
    check(engine, [*requests(), *(ask(10 + each.id, each.prompt, max_tokens=30) for each in short)])
    assert engine.scheduler.preemptions >= before + 3 * len(short)


def test_a_cache_in_8_bits_holds_what_it_holds_without_drafts(tiny: Checkpoints, compile_cache: None) -> None:
    """Where a key lies between two of 8 bits, another shape of a step may round it to the other: 1.0e-4 was seen."""
    check(load(tiny("llama2_gqa"), every_bucket=True, kv_cache_dtype="fp8", **SMALL), requests(), within=1e-3)


def test_adapters_draft_beside_each_other_and_the_model_itself(
    tiny: Checkpoints, tmp_path: Path, compile_cache: None
) -> None:
    for number in range(2):
        adapted(tiny("llama2_gqa"), seed=number, r=4, target_modules="all-linear").save_pretrained(
            tmp_path / f"a{number}"
        )
    named = {f"a{number}": tmp_path / f"a{number}" for number in range(2)}
    engine = load(tiny("llama2_gqa"), every_bucket=True, adapters=named, max_loras=2, **SMALL)  # type: ignore[arg-type]
    whose = ["a0", "", "a1", "a1", "", "a0"]
    check(engine, [ask(n, prompt(5 + 7 * n, seed=n), max_tokens=30, adapter=name) for n, name in enumerate(whose)])

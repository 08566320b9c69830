"""What a request holds, its pictures above all, is freed when it ends, not when the garbage collector comes by."""

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from jaxengine.engine.engine import Engine
from jaxengine.grammar.grammar import Grammar, Reasoning
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.sequence import Request
from tests.jaxengine.engines import Answer, ask, finish, load, prompt, serve, step
from tests.tiny_adapter import adapted

Checkpoints = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _no_garbage_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def is_freed(engine: Engine, make: Callable[[], Request]) -> bool:
    """Whether nothing of a request is left once it has been served."""
    request = make()
    reference = weakref.ref(request)
    serve(engine, [request])
    del request
    return reference() is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: ask(1, prompt(20), max_tokens=6, temperature=0.7),
        lambda: ask(1, prompt(20), max_tokens=6, logprobs=2, prompt_logprobs=True),
        lambda: ask(1, prompt(9), max_tokens=9, grammar=Grammar("regex", "[a-z]{4}")),
        lambda: ask(1, prompt(9), max_tokens=9, reasoning=Reasoning((), (40,), 3)),
        lambda: ask(1, prompt(9), max_tokens=9, beams=BeamSearch(width=3)),
    ],
    ids=["text", "logprobs", "grammar", "reasoning", "beams"],
)
def test_a_request_is_freed_when_it_has_been_answered(narrow: Engine, make: Callable[[], Request]) -> None:
    assert is_freed(narrow, make)


@pytest.mark.parametrize("beams", [None, BeamSearch(width=3)])
@pytest.mark.parametrize("steps", range(5))
def test_a_request_is_freed_when_it_is_cancelled(narrow: Engine, steps: int, beams: BeamSearch | None) -> None:
    """After so many steps: before it is scheduled, in the middle of its prompt, while it decodes."""
    request, answers = ask(1, prompt(30), max_tokens=9, beams=beams), {1: Answer()}
    reference = weakref.ref(request)
    narrow.submit(request)
    del request
    for _ in range(steps):
        step(narrow, answers)
    narrow.cancel(1)
    finish(narrow, answers)
    assert reference() is None


def test_a_request_is_freed_though_its_adapter_was_read_for_it(
    tiny: Checkpoints, tmp_path: Path, compile_cache: None
) -> None:
    for seed, name in enumerate("ab"):
        adapted(tiny("llama2_gqa"), seed=seed, r=4).save_pretrained(tmp_path / name)
    adapters = {name: tmp_path / name for name in "ab"}
    engine = load(tiny("llama2_gqa"), adapters=adapters, max_loras=1, max_cpu_loras=1)
    for name in "abab":
        assert is_freed(engine, partial(ask, 1, prompt(9), adapter=name))


def test_a_request_is_freed_though_drafts_were_made_for_it(tiny: Checkpoints, compile_cache: None) -> None:
    engine = load(tiny("llama2_gqa"), speculate=3)
    assert is_freed(engine, lambda: ask(1, prompt(9) * 3, max_tokens=20))

"""An engine whose drafts a test decides, beside the same engine without any, and what must be equal between the two."""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jaxengine.engine.engine import Engine
from jaxengine.request.plan import Plan
from jaxengine.request.sequence import Request, Sequence
from tests.jaxengine.engines import Answer, Answers, alone, ask, prompt
from tests.jaxengine.forced_drafts import ForcedDrafts
from tests.tiny import VOCAB

MANNERS = [  # of answering, that drafts must not change
    ask(10, prompt(9), max_tokens=30, temperature=1.0, repetition_penalty=1.3, logprobs=3),
    ask(11, prompt(20), max_tokens=30, temperature=0.8, stop_token_ids=tuple(range(40, 60))),
    ask(12, prompt(5), max_tokens=30, logit_bias={100: 3.0}, min_tokens=9, ignore_eos=False),
    ask(13, prompt(70), max_tokens=30, prompt_logprobs=True),
]
ORACLE: dict[str, Any] = {"kinds": ("right",), "share": 1.0, "waiting": 1.0}


def plain(engine: Engine, requests: Iterable[Request]) -> Answers:
    """What each request is answered alone, without speculation."""
    with speculator(engine, None):
        return {request.id: alone(engine, request) for request in requests}


@contextmanager
def drafting(engine: Engine, expected: Answers, seed: int = 0, **how: Any) -> Iterator[ForcedDrafts]:
    """Steps of `engine` verify drafts, of which those that are right are taken from `expected`."""

    def future(sequence: Sequence) -> list[int]:
        answer = expected.get(sequence.request.id, Answer())
        return answer.ids[len(sequence.tokens) - sequence.prompt_length :]

    limits = engine.runner.shapes.limits
    sizes = {"most": limits.draft_tokens, "largest": limits.verify_buckets[-1]}
    with speculator(engine, ForcedDrafts(future, random.Random(seed), vocab=VOCAB, **{**sizes, **how})) as drafts:
        yield drafts


@contextmanager
def speculator(engine: Engine, chosen: ForcedDrafts | None) -> Iterator[Any]:
    own, engine.scheduler.speculator = engine.scheduler.speculator, chosen
    try:
        yield chosen
    finally:
        engine.scheduler.speculator = own


def assert_same(ours: Answer, theirs: Answer, request: Request, within: float = 1e-4) -> None:
    """All that a client is told, logprobs `within` what another shape of a step rounds differently."""
    assert (ours.ids, ours.finish, ours.error) == (theirs.ids, theirs.finish, theirs.error), request.params
    for mine, other in zip([*ours.tokens, *ours.prompt[1:]], [*theirs.tokens, *theirs.prompt[1:]], strict=True):
        assert mine.logprob == pytest.approx(other.logprob, abs=within), request.params
        assert [token for token, _ in mine.top] == [token for token, _ in other.top]
        assert [logprob for _, logprob in mine.top] == pytest.approx([logprob for _, logprob in other.top], abs=within)


def plans_of(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Every plan that `engine` makes from now on."""
    plans: list[Plan] = []
    plan = engine.scheduler.plan

    def noted(*args: Any) -> Plan:
        plans.append(plan(*args))
        return plans[-1]

    monkeypatch.setattr(engine.scheduler, "plan", noted)
    return plans

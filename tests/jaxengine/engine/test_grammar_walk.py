"""Seeded runs of random requests, half of them with grammars, in which steps fail, pages run out and clients leave.

Whatever happens around it, a request gets the tokens that it gets alone; with a grammar as much as without one.
"""

import json
import random
from typing import Any

import pytest

from jaxengine.cache.page_pool import PagePool
from jaxengine.engine.engine import Engine
from jaxengine.grammar.grammar import Grammar, GrammarError, Reasoning
from jaxengine.request.event import FinishReason
from jaxengine.request.sequence import Request, Sequence
from tests.jaxengine.engines import Answer, Answers, alone, ask, check_idle, prompt, step
from tests.tiny import EOS

pytestmark = pytest.mark.slow

OBJECT = {
    "type": "object",
    "properties": {"n": {"type": "string", "maxLength": 9}, "v": {"type": "array", "items": {"type": "integer"}}},
    "x-guidance": {"whitespace_flexible": False},
}
GRAMMARS = [
    Grammar("json_schema", json.dumps(OBJECT)),
    Grammar("json_schema", '{"enum": ["red", "green", "blue"]}'),
    Grammar("regex", r"[a-z]{3,40}"),
    Grammar("regex", r"(\d{4}-\d\d ){1,6}"),
    Grammar("regex", r"[0-9 ]{20,99}"),
    Grammar("lark", 'start: word (" " word)*\nword: /[A-Z][a-z]+/'),
    Grammar("gbnf", 'root ::= "(" root ")" | [0-9]+'),
    Grammar("regex", "(["),  # refused
]
WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 1.4, "top_p": 0.9, "ignore_eos": False},
    {"temperature": 0.8, "repetition_penalty": 1.2, "presence_penalty": 0.4},
    {"temperature": 1.0, "logit_bias": {EOS: 4.0}, "ignore_eos": False},
    {"temperature": 1.2, "logprobs": 3, "processed_logprobs": True},
]
LAUNCHES = ("launch_backbone", "launch_sample", "fetch")


DOOMED = 5, 13  # requests whose grammar becomes too complex after some tokens


class BrokenDevice(RuntimeError):
    pass


class Walk:
    """The random requests of one seed, and what happens to the engine while it serves them.

    Of the requests, those with even numbers have no grammar.
    """

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.requests = [self._request(number) for number in range(1, 25)]
        self.cancelled = {each.id for each in self.requests if self.random.random() < 0.1}

    def _request(self, number: int) -> Request:
        ids = prompt(self.random.randint(2, 40), seed=self.random.randrange(6))
        way = {"max_tokens": self.random.randint(1, 60), **self.random.choice(WAYS)}
        if number % 2 == 0:
            return ask(number, ids, **way)
        way.pop("ignore_eos", None)
        budget = self.random.choice([None, None, 3, 10])
        reasoning = None if budget is None else Reasoning((), (301, 302), budget)
        return ask(number, ids, grammar=self.random.choice(GRAMMARS), reasoning=reasoning, **way)

    def doom_grammars(self, monkeypatch: pytest.MonkeyPatch) -> None:
        constraints = self.engine.constraints
        masks = constraints.masks

        def doomed(sequences: list[Sequence]) -> Any:
            filled, broken = masks(sequences)
            ends = [each for each in sequences if each.request.id in DOOMED and each.generated > 3]
            return filled, [*broken, *((each, GrammarError("too complex")) for each in ends)]

        monkeypatch.setattr(constraints, "masks", doomed)

    def break_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Some steps are launched and lost, and the caches with them; none while a culprit is looked for, who would
        be whoever is alone in the next step that fails.
        """
        runner = self.engine.runner
        for name in LAUNCHES:
            monkeypatch.setattr(runner, name, self._breaking(getattr(runner, name)))

    def _breaking(self, method: Any) -> Any:
        def call(argument: Any) -> Any:
            result = method(argument)
            if self.random.random() < 0.02 and not self.engine.culprit_search:
                for cache in self.engine.runner.state.layers:
                    cache.delete()
                raise BrokenDevice
            return result

        return call

    def run(self) -> Answers:
        """Requests arrive while others are served."""
        answers: Answers = {}
        waiting = list(self.requests)
        for _ in range(5000):
            if waiting and self.random.random() < 0.3:
                request = waiting.pop(0)
                answers[request.id] = Answer()
                self.engine.submit(request)
            if answers and self.random.random() < 0.1:
                self.engine.cancel(self.random.choice([*(self.cancelled & answers.keys()), 0]))
            step(self.engine, answers)
            if not waiting and self.engine.idle and not self.engine.preparing:
                break
        check_idle(self.engine)
        return answers


@pytest.fixture
def engine(narrow: Engine) -> Engine:
    return narrow


@pytest.mark.parametrize("seed", range(8))
def test_every_request_gets_the_tokens_that_it_gets_alone(
    engine: Engine, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = Walk(engine, seed)
    walk.doom_grammars(monkeypatch)
    expected = {request.id: alone(engine, request) for request in walk.requests}
    monkeypatch.setattr(engine.scheduler.tables, "pool", PagePool(1 + walk.random.choice([9, 14, 64]), 16))
    monkeypatch.setattr(engine.scheduler.tables, "prefix_cache", walk.random.random() < 0.5)
    walk.break_steps(monkeypatch)
    answers = walk.run()
    for request in walk.requests:
        ours, theirs = answers[request.id], expected[request.id]
        if ours.finish is FinishReason.CANCELLED:
            assert request.id in walk.cancelled and ours.ids == theirs.ids[: len(ours.ids)]
        else:
            assert (ours.ids, ours.finish, ours.error) == (theirs.ids, theirs.finish, theirs.error), request

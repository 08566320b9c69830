"""What a reader is warned of, and that nothing is said where all is well."""

import asyncio
import time

import pytest

from gateway.benchmark.answer import Answer, Outcome
from gateway.benchmark.command_line import parse
from gateway.benchmark.lag import Lag
from gateway.benchmark.report import Report
from gateway.benchmark.server_warnings import warnings

OPTIONS = ("--url=http://x", "-s=10", "-d=8")


def answer(**fields: object) -> Answer:
    return Answer(0.0, **{"chunks": [1.0], "prompt_tokens": 10, "output_tokens": 8, "counted": True, **fields})  # type: ignore[arg-type]


def warned(
    *answers: Answer, options: tuple[str, ...] = (), lag: tuple[float, ...] = (0.001,) * 100, **grown: float
) -> list[str]:
    report = Report("server", {}, {"metrics": {"grown": grown}})
    return warnings(parse([*OPTIONS, *options], {}), report, answers, lag)


def test_nothing_is_said_where_all_is_well() -> None:
    assert warned(answer(), answer(), compiles_after_warmup=0.0, prefix_cache_hit_tokens=0.0) == []
    assert warned() == []


def test_a_client_that_lags_says_by_how_much() -> None:
    [warning] = warned(answer(), lag=(0.0,) * 98 + (0.03, 0.08))
    assert "own event loop lagged" in warning and "the worst 80.0 ms" in warning
    assert warned(answer(), lag=(0.0,) * 999 + (0.5,)) == [], "one look in a thousand is nobody's fault"


async def test_a_loop_that_is_blocked_is_noticed() -> None:
    lag = Lag()
    async with lag.watched():
        await asyncio.sleep(0.05)
        time.sleep(0.2)  # what a client should not do
        await asyncio.sleep(0.05)
    assert max(lag.seconds) > 0.1 and sum(late > 0.1 for late in lag.seconds) <= 2


@pytest.mark.parametrize(
    ("given", "options", "grown", "message"),
    [
        (answer(outcome=Outcome.REJECTED, detail="429"), (), {}, "1 of 2 requests failed; the first: rejected, 429"),
        (answer(streamed=False), (), {}, "did not stream"),
        (answer(counted=False), (), {}, "told no usage"),
        (answer(output_tokens=4), (), {}, "answers had 6 tokens on average, not 8"),
        (answer(prompt_tokens=20), (), {}, "prompts had 15 tokens on average, not 10: --tokenizer-name"),
        (answer(prompt_tokens=20), ("-t=x",), {}, "not 10: the server adds to them, or its tokenizer is another"),
        (answer(), (), {"compiles_after_warmup": 2.0}, "compiled 2 times"),
        (answer(), (), {"prefix_cache_hit_tokens": 64.0}, "64 tokens of prompts were in the server's prefix cache"),
    ],
)
def test_what_makes_numbers_mean_something_else_is_told(
    given: Answer, options: tuple[str, ...], grown: dict[str, float], message: str
) -> None:
    [warning] = warned(answer(), given, options=options, **grown)
    assert message in warning


def test_prefix_hits_are_what_a_load_with_shared_prefixes_is_for() -> None:
    assert warned(answer(), options=("--prompts=shared-prefix",), prefix_cache_hit_tokens=64.0) == []

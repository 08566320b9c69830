"""Eight streams of a server that others use too: what they are answered, and how fast."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import cycle
from typing import TypeVar

from tests.server.streams import stream

STREAMS = 8

Body = TypeVar("Body")
Answer = TypeVar("Answer")


async def eight_streams(url: str, tokens: int) -> list[tuple[int, ...]]:
    """Their ids."""
    outcomes = await asyncio.gather(*(stream(url, f"hello {number}", tokens) for number in range(STREAMS)))
    assert all(outcome.error is None for outcome in outcomes), outcomes
    return [outcome.ids for outcome in outcomes]


async def rate(url: str, tokens: int) -> float:
    """Tokens a second of the streams together, each of which has `tokens`."""
    began = time.perf_counter()
    return sum(map(len, await eight_streams(url, tokens))) / (time.perf_counter() - began)


async def rate_beside(
    url: str, tokens: int, bodies: Sequence[Body], send: Callable[[str, Iterator[Body]], Awaitable[list[Answer]]]
) -> tuple[float, float, list[Answer]]:
    """`rate` while `send` sends `bodies` over and over, how many were answered a second, and the answers."""
    streaming = True

    def until_done() -> Iterator[Body]:
        for sent in cycle(bodies):
            if not streaming:
                return
            yield sent

    began = time.perf_counter()
    flood = asyncio.ensure_future(send(url, until_done()))
    streams = await rate(url, tokens)
    streaming = False
    answers = await flood
    return streams, len(answers) / (time.perf_counter() - began), answers

"""Eight streams of a server that others use too: what they are answered, and how fast."""

import asyncio
import time

from tests.server.streams import stream

STREAMS = 8


async def eight_streams(url: str, tokens: int) -> list[tuple[int, ...]]:
    """Their ids."""
    outcomes = await asyncio.gather(*(stream(url, f"hello {number}", tokens) for number in range(STREAMS)))
    assert all(outcome.error is None for outcome in outcomes), outcomes
    return [outcome.ids for outcome in outcomes]


async def rate(url: str, tokens: int) -> float:
    """Tokens a second of the streams together, each of which has `tokens`."""
    began = time.perf_counter()
    return sum(map(len, await eight_streams(url, tokens))) / (time.perf_counter() - began)

"""The two kinds of load: so many requests in flight, or so many a second whatever becomes of them."""

import asyncio
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Protocol

from gateway.benchmark.answer import Answer, Outcome
from gateway.benchmark.prompt import Prompt

LONGEST_PAUSE = 1.0  # seconds: a user who is rejected asks again, but not at once
SHORTEST_PAUSE = 0.05
TIMER_SECONDS = 0.0015


class Sends(Protocol):
    """What sends a request: `Sender`, or a fake in tests."""

    @property
    def given_up(self) -> bool: ...

    async def send(self, prompt: Prompt, due: float | None = None) -> Answer: ...


async def closed_loop(
    sender: Sends,
    prompts: Iterator[Prompt],
    users: int,
    requests: int | None = None,
    duration: float | None = None,
) -> list[Answer]:
    """The answers of `users` that each ask again as soon as they are answered.

    They ask `requests` in all, or until `duration` seconds are over; what is in flight then is awaited.
    """
    answers: list[Answer] = []
    asked, end = 0, None if duration is None else perf_counter() + duration

    async def user() -> None:
        nonlocal asked
        while not sender.given_up and (requests is None or asked < requests) and (end is None or perf_counter() < end):
            asked += 1
            answer = await sender.send(next(prompts))
            answers.append(answer)
            await _pause(answer)

    await asyncio.gather(*(user() for _ in range(users)))
    return answers


async def open_loop(sender: Sends, prompts: Iterator[Prompt], due: Sequence[float]) -> list[Answer]:
    """The answers to requests that are sent when they are due, in seconds from now, however late answers are."""
    began = perf_counter()
    sent: list[asyncio.Task[Answer]] = []
    async with asyncio.TaskGroup() as group:  # what is in flight ends with the loop, if that is cancelled
        for seconds in due:
            await _until(began + seconds)
            if sender.given_up:
                break
            sent.append(group.create_task(sender.send(next(prompts), due=began + seconds)))
    return [task.result() for task in sent]


async def _until(moment: float) -> None:
    """A timer of the loop ends up to a millisecond late, which would count as the server's; so it ends early, and what
    is left is passed by giving way.
    """
    if (wait := moment - perf_counter() - TIMER_SECONDS) > 0:
        await asyncio.sleep(wait)
    while perf_counter() < moment:
        await asyncio.sleep(0)


async def _pause(answer: Answer) -> None:
    if answer.outcome is Outcome.REJECTED:
        await asyncio.sleep(min(max(answer.retry_after, SHORTEST_PAUSE), LONGEST_PAUSE))
    elif answer.outcome is Outcome.UNREACHABLE:
        await asyncio.sleep(SHORTEST_PAUSE)

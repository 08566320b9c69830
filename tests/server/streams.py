"""One stream as a client sees it: its token ids, and how it ended. A stream that stops without an end is a failure."""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

from tests.processes import NO_CERTIFICATES, PATIENCE


@dataclass(frozen=True)
class Outcome:
    """`error` is the event or the body that ended the request; None if it is complete."""

    ids: tuple[int, ...]
    error: dict[str, Any] | None


async def stream(
    url: str,
    inputs: str,
    new_tokens: int,
    begun: asyncio.Event | None = None,
    moments: list[float] | None = None,
    **parameters: Any,
) -> Outcome:
    """A greedy `/generate_stream`. Fails on anything but a complete stream, one error event at its end, or a 503.

    `begun` is set by the first event. `moments` get the time of each, in seconds of the monotonic clock.
    """
    body = {"inputs": inputs, "parameters": {"max_new_tokens": new_tokens, **parameters}}
    http = httpx.AsyncClient(timeout=PATIENCE, **NO_CERTIFICATES)
    async with http, http.stream("POST", url + "/generate_stream", json=body) as answer:
        if answer.status_code == 200:
            lines = []
            async for line in answer.aiter_lines():
                if not line.startswith("data:"):
                    continue  # what ends an event, or keeps a silent stream alive
                lines.append(line)
                if moments is not None:
                    moments.append(time.monotonic())
                if begun is not None:
                    begun.set()
            return outcome(lines)
        assert answer.status_code == 503, answer.status_code
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        return Outcome((), json.loads(await answer.aread()))


def outcome(lines: list[str]) -> Outcome:
    events = [json.loads(line.removeprefix("data:")) for line in lines]
    *tokens, last = events
    assert all(event["generated_text"] is None for event in tokens)
    if "error" in last:
        return Outcome(ids_of(tokens), last)
    assert last["generated_text"] is not None, "the stream stopped without an end"
    return Outcome(ids_of(events), None)


def ids_of(events: list[dict[str, Any]]) -> tuple[int, ...]:
    return tuple(event["token"]["id"] for event in events)

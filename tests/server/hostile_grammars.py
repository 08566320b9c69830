"""What is left of eight streams beside three hundred hostile grammars, by the whole server. Run by hand:

python -m tests.server.hostile_grammars [ROUNDS]

It prints the tokens a second of the streams beside the grammars over those without, what became of the grammars, the
longest wait for an answer, and what the server's processes hold before and after.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from tests.jaxengine.grammar.hostile import Grammar, grammars
from tests.processes import NO_CERTIFICATES, PATIENCE
from tests.server.streams import stream
from tests.servers import Server, descendants, serving

STREAMS = 8
SENDERS = 4
TOKENS = 250
FIELDS = {"json_schema": "json", "regex": "regex", "lark": "grammar", "gbnf": "grammar"}  # of `structured_outputs`


def body(grammar: Grammar) -> dict[str, Any]:
    """A completion of one token under `grammar`; what is no JSON is sent as text."""
    kind, text = grammar
    value: Any = text
    if kind == "json_schema":
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
    return {"prompt": "a", "max_tokens": 1, "structured_outputs": {FIELDS[kind]: value}}


async def send(url: str, chosen: list[Grammar]) -> list[tuple[int, float]]:
    """The status and the seconds of each."""
    answers: list[tuple[int, float]] = []
    waiting = iter(chosen)

    async def sender(http: httpx.AsyncClient) -> None:
        for grammar in waiting:
            try:
                content = json.dumps(body(grammar))
            except RecursionError:  # nested too deeply for us to write
                continue
            began = time.perf_counter()
            answer = await http.post(
                url + "/v1/completions", content=content, headers={"content-type": "application/json"}
            )
            answers.append((answer.status_code, time.perf_counter() - began))

    async with httpx.AsyncClient(timeout=PATIENCE, **NO_CERTIFICATES) as http:
        await asyncio.gather(*(sender(http) for _ in range(SENDERS)))
    return answers


async def eight_streams(url: str, tokens: int) -> list[tuple[int, ...]]:
    """Their ids."""
    outcomes = await asyncio.gather(*(stream(url, f"hello {number}", tokens) for number in range(STREAMS)))
    assert all(outcome.error is None for outcome in outcomes), outcomes
    return [outcome.ids for outcome in outcomes]


async def rate(url: str) -> float:
    """Tokens a second of the streams together."""
    began = time.perf_counter()
    return sum(map(len, await eight_streams(url, TOKENS))) / (time.perf_counter() - began)


def held(server: Server) -> float:
    """MiB of memory that the server's processes hold."""
    pids = [server.process.pid, *descendants(server.process.pid)]
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * 4096 / 2**20


async def measure(server: Server, rounds: int) -> None:
    await send(server.url, grammars()[:3])
    await rate(server.url)
    for _ in range(rounds):
        before, memory = await rate(server.url), held(server)
        flood = asyncio.create_task(send(server.url, grammars()))
        beside = []
        while not flood.done():
            beside.append(await rate(server.url))
        answers, after = flood.result(), await rate(server.url)
        beside = beside[:-1] or beside  # in the last the flood may have ended
        waits = sorted(seconds for _, seconds in answers)
        print(
            f"streams beside / without: {2 * median(beside) / (before + after):.2f} ({len(beside)} measured); "
            f"statuses {dict(Counter(status for status, _ in answers))}; "
            f"seconds p50 {median(waits):.2f}, longest {waits[-1]:.2f}; MiB {memory:.0f}, {held(server):.0f}",
            flush=True,
        )


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory)) as server:
        server.wait_ready()
        asyncio.run(measure(server, rounds))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3)

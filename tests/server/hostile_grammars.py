"""What is left of eight streams beside three hundred hostile grammars, by the whole server. Run by hand:

python -m tests.server.hostile_grammars [ROUNDS]

First every grammar is sent once: what became of them, and how long the senders waited. Then, in turns, four senders
send without a pause what was refused, what was served, and as many requests of one token without a grammar: what any
sender costs. For each it prints the tokens a second of the streams beside the senders over those without, and what
the server's processes hold before and after.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from jaxengine.grammar.grammar import Grammar
from tests.jaxengine.grammar.hostile import grammars
from tests.processes import NO_CERTIFICATES, PATIENCE
from tests.server.eight_streams import rate, rate_beside
from tests.servers import Server, descendants, serving

SENDERS = 4
TOKENS = 250
FIELDS = {"json_schema": "json", "regex": "regex", "lark": "grammar", "gbnf": "grammar"}  # of `structured_outputs`


PLAIN = {"prompt": "a", "max_tokens": 1}


@dataclass(frozen=True)
class Answer:
    sent: dict[str, Any]
    status: int
    seconds: float


def body(grammar: Grammar) -> dict[str, Any]:
    """A completion of one token under `grammar`; what is no JSON is sent as text."""
    value: Any = grammar.text
    if grammar.kind == "json_schema":
        with suppress(ValueError, RecursionError):
            value = json.loads(grammar.text)
    return PLAIN | {"structured_outputs": {FIELDS[grammar.kind]: value}}


async def send(url: str, bodies: Iterable[dict[str, Any]]) -> list[Answer]:
    """What became of each body that JSON can hold, sent by four at a time."""
    answers: list[Answer] = []
    waiting = iter(bodies)

    async def sender(http: httpx.AsyncClient) -> None:
        for sent in waiting:
            try:
                content = json.dumps(sent)
            except RecursionError:  # nested too deeply for us to write
                continue
            began = time.perf_counter()
            answer = await http.post(
                url + "/v1/completions", content=content, headers={"content-type": "application/json"}
            )
            answers.append(Answer(sent, answer.status_code, time.perf_counter() - began))

    async with httpx.AsyncClient(timeout=PATIENCE, **NO_CERTIFICATES) as http:
        await asyncio.gather(*(sender(http) for _ in range(SENDERS)))
    return answers


def held(server: Server) -> float:
    """MiB of memory that the server's processes hold."""
    pids = [server.process.pid, *descendants(server.process.pid)]
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * 4096 / 2**20


async def measure(server: Server, rounds: int) -> None:
    memory = held(server)
    answers = await send(server.url, map(body, grammars()))
    waits = sorted(answer.seconds for answer in answers)
    print(
        f"statuses {dict(Counter(answer.status for answer in answers))}; "
        f"seconds p50 {median(waits):.2f}, longest {waits[-1]:.2f}; MiB {memory:.0f}, {held(server):.0f}"
    )
    floods = {
        "refused": [answer.sent for answer in answers if answer.status != 200],
        "served": [answer.sent for answer in answers if answer.status == 200],
        "plain": [PLAIN],
    }
    shares: dict[str, list[float]] = {name: [] for name in floods}
    for _ in range(rounds):
        for name, bodies in floods.items():
            before = await rate(server.url, TOKENS)
            during, sent, _ = await rate_beside(server.url, TOKENS, bodies, send)
            shares[name].append(2 * during / (before + await rate(server.url, TOKENS)))
            print(f"{name}: {shares[name][-1]:.2f} of the streams' rate beside {sent:.0f} a second", flush=True)
    print(*(f"{name} {median(measured):.2f}" for name, measured in shares.items()), f"MiB {held(server):.0f}")


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory)) as server:
        server.wait_ready()
        asyncio.run(measure(server, rounds))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3)

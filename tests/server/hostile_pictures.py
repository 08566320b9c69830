"""What is left of eight streams beside a flood of hostile pictures, by the launcher and the mock engine. Run by hand:

python -m tests.server.hostile_pictures [ROUNDS]

Four senders send without a pause, in turns: the hostile set, pictures of 4 megapixels that are served, and as many
chats without a picture, which is what any sender costs. For each it prints the tokens a second of the streams beside
the senders over those without.
"""

import asyncio
import base64
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import httpx

from tests.gateway.images.hostile_pictures import all_files, noise, saved
from tests.gateway.images.models import directory
from tests.processes import NO_CERTIFICATES, PATIENCE, MockLauncher, running_launcher
from tests.server.eight_streams import rate, rate_beside
from tests.tiny_vision import IMAGE

SENDERS = 4
TOKENS = 1500
PLAIN = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}


def body(url: str) -> dict[str, Any]:
    """A chat of one token about the picture at `url`."""
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "a"}]
    return PLAIN | {"messages": [{"role": "user", "content": parts}]}


def inside(file: bytes) -> dict[str, Any]:
    """The same with the picture inside."""
    return body(f"data:image/png;base64,{base64.b64encode(file).decode()}")


@contextmanager
def seeing_launcher(folder: Path, *options: str, step_seconds: float = 0.0) -> Iterator[MockLauncher]:
    """A tiny LLaVA's gateway in front of a mock engine, ready."""
    shutil.copytree(directory("llava"), folder, dirs_exist_ok=True)
    mock = (f"--image-token-id={IMAGE}", "--patch-values=588", f"--step-seconds={step_seconds}")
    with running_launcher(folder, *options, mock=mock) as launcher:
        launcher.wait_for(200)
        yield launcher


async def send(url: str, bodies: Iterable[dict[str, Any]]) -> list[int]:
    """The status that each body got, sent by four at a time."""
    statuses: list[int] = []
    waiting = iter(bodies)

    async def sender(http: httpx.AsyncClient) -> None:
        for sent in waiting:
            statuses.append((await http.post(url + "/v1/chat/completions", json=sent)).status_code)

    async with httpx.AsyncClient(timeout=PATIENCE, **NO_CERTIFICATES) as http:
        await asyncio.gather(*(sender(http) for _ in range(SENDERS)))
    return statuses


async def measure(url: str, rounds: int) -> None:
    files = [data for _, data in all_files()]
    Random(1).shuffle(files)
    statuses = await send(url, map(inside, files))
    print(f"{len(files)} hostile pictures: {dict(Counter(statuses))}", flush=True)
    large = inside(saved(noise(250, 250).resize((2000, 2000)), "JPEG"))
    floods = {"hostile": [inside(data) for data in files], "large": [large], "plain": [PLAIN]}
    shares: dict[str, list[float]] = {name: [] for name in floods}
    for _ in range(rounds):
        for name, bodies in floods.items():
            before = await rate(url, TOKENS)
            during, sent, answers = await rate_beside(url, TOKENS, bodies, send)
            shares[name].append(2 * during / (before + await rate(url, TOKENS)))
            print(
                f"{name}: {shares[name][-1]:.2f} of {before:.0f} tokens a second beside {sent:.1f} a second,"
                f" {dict(Counter(answers))}",
                flush=True,
            )
    print(*(f"{name} {median(measured):.2f}" for name, measured in shares.items()))


def main(rounds: int) -> None:
    for step_seconds in (0.005, 0.0):
        print(f"steps of {step_seconds:g} s")
        with (
            tempfile.TemporaryDirectory() as folder,
            seeing_launcher(Path(folder), step_seconds=step_seconds) as server,
        ):
            asyncio.run(measure(server.url, rounds))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3)

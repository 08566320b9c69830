"""Three hundred hostile pictures and URLs cost their senders a 4xx, or are served, and nobody else anything.

What share of their rate other streams keep depends on the machine: `hostile_pictures` measures it.
"""

import asyncio
from pathlib import Path

import pytest

from tests.gateway.images.hostile_pictures import all_files
from tests.gateway.images.hostile_server import hostile_server
from tests.gateway.images.hostile_urls import hostile_urls
from tests.processes import children, command_line, until
from tests.server.eight_streams import eight_streams
from tests.server.hostile_pictures import body, inside, seeing_launcher, send

pytestmark = pytest.mark.slow

TOKENS = 100


async def test_they_are_refused_while_streams_go_on(tmp_path: Path) -> None:
    async with hostile_server() as canary:
        bodies = [inside(data) for _, data in all_files()]
        bodies += [body(url) for url in hostile_urls(canary.port)]
        domains = ("--allowed-media-domains=*", f"--allowed-media-domains=*:{canary.port}")
        with seeing_launcher(tmp_path, *domains) as launcher:
            expected = await eight_streams(launcher.url, TOKENS)
            engine = launcher.engine_pid()
            flood = asyncio.create_task(send(launcher.url, bodies))
            while not flood.done():
                assert await eight_streams(launcher.url, TOKENS) == expected
            statuses = flood.result()
            assert len(statuses) > 350 and set(statuses) <= {200, 400, 422}, statuses
            assert statuses.count(200) > 130
            assert launcher.engine_pid() == engine and canary.hits == 0
            await until(lambda: not any(map(children, helpers(launcher.process.pid))))


def helpers(pid: int) -> list[int]:
    """The processes that decode pictures below `pid`."""
    return [each for each in children(pid) if "helper_process" in command_line(each)]

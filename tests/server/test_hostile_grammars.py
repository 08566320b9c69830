"""Three hundred hostile grammars cost their senders a 4xx, or are served, and nobody else anything.

What share of their rate other streams keep depends on the machine: `hostile_grammars` measures it.
"""

import asyncio

import pytest

from tests.jaxengine.grammar.hostile import grammars
from tests.server.eight_streams import eight_streams
from tests.server.hostile_grammars import body, held, send
from tests.servers import Server

pytestmark = pytest.mark.slow

MEMORY = 300  # MiB that may stay: what was compiled is kept, and Python's own arenas
TOKENS = 100


async def test_they_are_refused_while_streams_go_on_and_memory_returns(server: Server) -> None:
    expected = await eight_streams(server.url, TOKENS)
    engine, before = server.engine_pid(), held(server)
    flood = asyncio.create_task(send(server.url, map(body, grammars())))
    while not flood.done():
        assert await eight_streams(server.url, TOKENS) == expected
    statuses = [answer.status for answer in flood.result()]
    assert len(statuses) > 280
    assert set(statuses) <= {200, 400, 413, 422}, statuses
    assert sum(status != 200 for status in statuses) > 100
    assert server.engine_pid() == engine
    assert held(server) < before + MEMORY

"""How late the client's own event loop is: what it adds to every time that it measures."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from time import perf_counter

LOOK_SECONDS = 0.01


class Lag:
    """seconds: by which each look came late."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look for as long as the block runs."""
        looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    async def _look(self) -> None:
        while True:
            began = perf_counter()
            await asyncio.sleep(LOOK_SECONDS)
            self.seconds.append(max(0.0, perf_counter() - began - LOOK_SECONDS))

"""`Replicas` in front of mock-engine processes, each of which a test may kill, stop and start again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from gateway.engine.listener import EngineListener
from gateway.engine.replica import Turn
from gateway.engine.replicas import Replicas
from gateway.engine.routing import Reason
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc import transport
from tests.processes import Engine, running_engine, until


class Routes:
    """Keeps what it hears: where requests went and why, and what moved them."""

    def __init__(self) -> None:
        self.routed: list[tuple[int, Reason, int]] = []
        self.moved: list[str] = []

    def request_routed(self, engine: int, reason: Reason, cached_tokens: int) -> None:
        self.routed.append((engine, reason, cached_tokens))

    def request_moved(self, cause: Literal["lost", "drained"]) -> None:
        self.moved.append(cause)


class Fleet(EngineListener):
    """Engines and the replicas that speak to them.

    turns: what the operator wants of each.
    generated: tokens that each says it has generated.
    """

    def __init__(self, directory: Path, count: int, flags: Sequence[str], **options: Any) -> None:
        self._stack, self._directory, self._flags = ExitStack(), directory, flags
        self._token = transport.new_token()
        self.engines: list[Engine] = [self._start(number) for number in range(count)]
        self.turns = [Turn.OPEN] * count
        self.generated = [0] * count
        self.routes = Routes()
        self.replicas = Replicas(
            [each.path for each in self.engines],
            self._token,
            turn=lambda number: self.turns[number],
            listeners=(self,),
            routes=self.routes,
            **options,
        )

    def _start(self, number: int) -> Engine:
        directory = self._directory / str(number)
        return self._stack.enter_context(running_engine(directory, *self._flags, token=self._token))

    def engine_step(self, engine: int, step: pb.StepEvents) -> None:
        if step.HasField("stats"):
            self.generated[engine] = step.stats.generated_tokens

    def kill(self, number: int) -> None:
        self.engines[number].process.kill()

    def start_again(self, number: int) -> None:
        """Start an engine that has been killed."""
        self.engines[number].process.wait()
        self.engines[number] = self._start(number)

    def state(self, number: int) -> str:
        return self.replicas.replicas[number].state

    def load(self, number: int) -> int:
        """Requests that an engine says it has."""
        status = self.replicas.replicas[number]
        return status.running + status.waiting

    def close(self) -> None:
        self._stack.close()


@asynccontextmanager
async def fleet(directory: Path, count: int, *flags: str, **options: Any) -> AsyncIterator[Fleet]:
    """So many mock engines, all of them ready."""
    engines = Fleet(directory, count, flags, **options)
    running = asyncio.create_task(engines.replicas.run())
    try:
        await until(lambda: all(engines.state(number) == "ready" for number in range(count)))
        yield engines
    finally:
        running.cancel()
        await asyncio.wait((running,))
        engines.close()

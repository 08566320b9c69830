"""The adapters of several engines, changed in all of them by one call.

An engine that comes back, or was loading while others changed, is brought into line before it takes requests: it then
serves what those serve that are ready.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gateway.engine.adapters import EngineAdapters
from gateway.engine.client import EngineClient
from gateway.engine.interface import EngineUnavailable
from gateway.errors import Kind, RequestError
from jaxengine.rpc import engine_pb2 as pb

logger = logging.getLogger(__name__)


class ReplicaAdapters:
    """`gateway.engine.interface.Adapters` of all replicas.

    Args:
        clients: of the engines, by their numbers.
    """

    def __init__(self, clients: Sequence[EngineClient]) -> None:
        self._clients = clients

    @property
    def served(self) -> Mapping[str, pb.Adapter]:
        """Those of any replica that is ready, or of all where none is."""
        ready = [each for each in self._clients if each.ready] or self._clients
        return {name: adapter for client in ready for name, adapter in client.adapters.served.items()}

    async def refresh(self) -> None:
        await self._each(self._ready(), lambda adapters: adapters.refresh())

    async def load(self, name: str, path: str, *, in_place: bool) -> None:
        """See `Adapters.load`. One replica tries it first, so that a wrong path changes nothing."""
        first, *others = self._ready()
        before = first.adapters.served.get(name)
        await first.adapters.load(name, path, in_place=in_place)
        try:
            await self._each(others, lambda adapters: adapters.load(name, path, in_place=in_place))
        except RequestError:
            logger.error("not every replica can serve adapter %r from %r: all serve what they did", name, path)
            await self._each([first, *others], lambda adapters: _restore(adapters, name, before))
            raise

    async def unload(self, name: str) -> None:
        first, *others = self._ready()
        await first.adapters.unload(name)
        await self._each(others, lambda adapters: _forget(adapters, name))

    async def align(self, number: int) -> None:
        """Have the engine `number`, which can be called but takes no requests yet, serve what the others serve."""
        client = self._clients[number]
        others = [each for each in self._clients if each.ready and each is not client]
        if not others or client.description is None or not client.description.max_adapters:
            return
        wanted, ours = others[0].adapters.served, client.adapters
        try:
            await ours.refresh()
            for name in ours.served.keys() - wanted.keys():
                await _forget(ours, name)
            for name, adapter in wanted.items():
                if name not in ours.served or ours.served[name].digest != adapter.digest:
                    await ours.load(name, adapter.path, in_place=True)
        except RequestError as error:  # what it lacks is not asked of it
            logger.error("replica %d does not serve the adapters of the others: %s", number, error.message)

    @property
    def _any_ready(self) -> bool:
        return any(each.ready for each in self._clients)

    def _ready(self) -> list[EngineClient]:
        """The replicas that can be called; one that cannot, if none can: it says why."""
        return [each for each in self._clients if each.ready] or [self._clients[0]]

    async def _each(self, clients: Sequence[EngineClient], call: Callable[[EngineAdapters], Awaitable[None]]) -> None:
        """Call each. One that is lost meanwhile is no error while others are there: it is aligned when it is back."""
        done = await asyncio.gather(*(call(each.adapters) for each in clients), return_exceptions=True)
        for error in done:
            if isinstance(error, BaseException) and not (isinstance(error, EngineUnavailable) and self._any_ready):
                raise error


async def _restore(adapters: EngineAdapters, name: str, adapter: pb.Adapter | None) -> None:
    """Serve as `name` what was served before, or nothing."""
    if adapter is None:
        await _forget(adapters, name)
    else:
        await adapters.load(name, adapter.path, in_place=True)


async def _forget(adapters: EngineAdapters, name: str) -> None:
    """Unload `name`; that it is not there is fine: another HTTP process may have been first. `served` may be a moment
    old.
    """
    try:
        await adapters.unload(name)
    except RequestError as error:
        if error.kind is not Kind.MODEL_NOT_FOUND:
            raise

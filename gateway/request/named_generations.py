"""Running generations that clients have given a name, by which another request reads or ends them.

A name belongs to the caller who gave it: it neither shows nor ends what another caller began. It lasts as long as the
generation, and several generations may have one.

Where there are several HTTP processes, the other request may reach another process. So each generation also has a file
in the private directory that they share: its process adds the text to the file, and ends once the file is removed. What
a process that died has left there stays until the server ends.
"""

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gateway.http.disconnect import stop
from gateway.request.output import OutputProcessor

logger = logging.getLogger(__name__)

FOLDER = "generations"  # of the shared directory
LOOK_SECONDS = 0.1  # between two looks at a file

Item = TypeVar("Item")
Name = tuple[int, str]  # caller, and what they call it


class Generation:
    """A generation that can be ended from outside, also before it has an `output`."""

    def __init__(self) -> None:
        self.output: OutputProcessor | None = None
        self._ended = False
        self._next: asyncio.Future[Any] | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        return self.output.text if self.output is not None else ""

    def end(self) -> None:
        self._ended = True
        if self._next is not None:
            self._next.cancel()

    async def until_ended(self, items: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
        """`items` until `end` is called, which closes them; none of them is None."""
        async with aclosing(items):
            while not self._ended:
                following = self._next = asyncio.ensure_future(anext(items, None))
                try:
                    await asyncio.wait({following})
                finally:
                    await stop(following)
                if following.cancelled() or (item := following.result()) is None:
                    return
                yield item


class NamedGenerations:
    """Those of all HTTP processes.

    Args:
        directory: what the processes share, if there are several.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._running: dict[Name, list[Generation]] = {}
        self._folder = None if directory is None else directory / FOLDER
        if self._folder is not None:
            self._folder.mkdir(mode=0o700, exist_ok=True)

    @asynccontextmanager
    async def running(self, caller: int, name: str) -> AsyncIterator[Generation]:
        """A generation that has the `name` of `caller` within the block, or none if that is empty."""
        generation = Generation()
        if not name:
            yield generation
            return
        with self._listed((caller, name), generation):
            if self._folder is None:
                yield generation
                return
            file = self._folder / f"{_stem((caller, name))}-{time.time_ns():020}-{os.getpid()}"
            shared = asyncio.ensure_future(_share(generation, file))
            try:
                yield generation
            finally:
                await stop(shared)

    def text(self, caller: int, name: str) -> str:
        """The text so far of the generation that was begun last, of those of this process if there are any; "" if none
        of that name runs.
        """
        if own := self._running.get((caller, name)):
            return own[-1].text
        for file in reversed(self._files((caller, name))):
            try:
                return file.read_bytes().decode(errors="ignore")  # the last character may be half written
            except FileNotFoundError:  # the generation has ended since
                continue
        return ""

    def end(self, caller: int, name: str) -> bool:
        """End all generations of that name. Whether there were any."""
        own, files = self._running.get((caller, name), []), self._files((caller, name))
        for generation in own:
            generation.end()
        for file in files:
            file.unlink(missing_ok=True)
        return bool(own or files)

    @contextmanager
    def _listed(self, name: Name, generation: Generation) -> Iterator[None]:
        same = self._running.setdefault(name, [])
        same.append(generation)
        try:
            yield
        finally:
            same.remove(generation)
            if not same:
                self._running.pop(name, None)

    def _files(self, name: Name) -> list[Path]:
        """Of the generations of that name, in the order in which they were begun."""
        return [] if self._folder is None else sorted(self._folder.glob(f"{_stem(name)}-*"))


def _stem(name: Name) -> str:
    """What the names of files begin with: a digest, as clients may write anything."""
    return hashlib.sha256(repr(name).encode()).hexdigest()[:32]


async def _share(generation: Generation, path: Path) -> None:
    """Keep the text in a file at `path`, and end the generation once another process has removed that."""
    written = 0
    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            while path.exists():
                text = generation.text
                file.write(text[written:])
                file.flush()
                written = len(text)
                await asyncio.sleep(LOOK_SECONDS)
        generation.end()
    except OSError as error:  # it goes on, and only its own process can read or end it
        logger.warning("a named generation is not shared with other HTTP processes: %s", error)
    finally:
        path.unlink(missing_ok=True)

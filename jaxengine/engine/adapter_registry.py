"""The adapters that requests may name. They lie in host memory, ready to be placed on the device, as long as there is
room for them there; one that was dropped is read again when a request asks for it.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from jaxengine.architecture.adaptation import AdapterReader, AdapterShapes, AdapterWeights, LoadedAdapter
from jaxengine.model.adapters import loaded
from jaxengine.ops.adapters import AdapterStack
from jaxengine.options.adapters import NO_ADAPTER
from jaxengine.request.interface import AdapterRefused, ServedAdapter

logger = logging.getLogger(__name__)

NONE_SERVED = "this server was started without adapters: --enable-lora, or name some in --lora-adapters"

Done = Callable[[LoadedAdapter | None, str], None]  # of `AdapterRegistry.fetch`: the adapter, or why there is none


@dataclass
class Entry:
    """An adapter under its name."""

    served: ServedAdapter
    loaded: LoadedAdapter | None


class AdapterRegistry:
    """Of one engine. Every method may be called from any thread.

    Args:
        reader, shapes, stacks: None, and empty, where the engine serves none.
        model: what requests call the model itself, which no adapter may be called.
        most: how many stay in host memory; None is all.
    """

    def __init__(
        self,
        reader: AdapterReader | None = None,
        shapes: AdapterShapes | None = None,
        stacks: Mapping[str, AdapterStack] | None = None,
        *,
        model: str = "",
        most: int | None = None,
    ) -> None:
        self._reader, self._shapes, self._stacks = reader, shapes, stacks or {}
        self._model, self._most = model, most
        self._entries: dict[str, Entry] = {}  # by name, in order of loading
        self._recent: list[str] = []  # names of those in host memory, the one unused for longest first
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(1, "adapters")

    def served(self) -> tuple[ServedAdapter, ...]:
        with self._lock:
            return tuple(entry.served for entry in self._entries.values())

    def load(
        self, name: str, path: str, *, in_place: bool = False, weights: AdapterWeights | None = None
    ) -> ServedAdapter:
        """Serve the adapter at `path` as `name`. `weights` are what was read of it before.

        Raises:
            AdapterRefused: nothing has changed.
        """
        if self._shapes is None:
            raise AdapterRefused("off", NONE_SERVED)
        with self._lock:
            self._check_free(name, in_place)
        weights, found = self._read(path, weights)
        served = ServedAdapter(name, path, weights.rank, weights.digest)
        with self._lock:
            self._check_free(name, in_place)
            self._entries[name] = Entry(served, found)
            self._use(name)
        return served

    def unload(self, name: str) -> None:
        """Raises AdapterRefused if there is none."""
        with self._lock:
            if self._entries.pop(name, None) is None:
                raise AdapterRefused("missing", f"{NO_ADAPTER} {name!r}")
            self._recent = [each for each in self._recent if each != name]

    def check(self, name: str) -> None:
        """Raises ValueError if no adapter is called `name`."""
        with self._lock:
            if name and name not in self._entries:
                raise ValueError(NONE_SERVED if self._shapes is None else f"{NO_ADAPTER} {name!r}")

    def fetch(self, name: str, done: Done) -> None:
        """Call `done` with adapter `name`: at once, or from another thread when it has been read again."""
        with self._lock:
            entry = self._entries.get(name)
            found = entry.loaded if entry else None
            if found is not None:
                self._use(name)
        if entry is None:
            done(None, f"{NO_ADAPTER} {name!r}")
        elif found is not None:
            done(found, "")
        else:
            self._threads.submit(self._read_again, name, entry, done)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read_again(self, name: str, entry: Entry, done: Done) -> None:
        found = entry.loaded  # another request may have had it read meanwhile
        try:
            if found is None:
                weights, found = self._read(entry.served.path, None)
                if weights.digest != entry.served.digest:
                    raise AdapterRefused("invalid", "its files have changed since it was loaded; load it again")
        except Exception as error:  # whatever it is: the request would wait for ever
            logger.error("adapter %r cannot be read again: %s", name, error)
            done(None, f"adapter {name!r} cannot be read again")
            return
        with self._lock:
            entry.loaded = found
            if self._entries.get(name) is entry:
                self._use(name)
        done(found, "")

    def _read(self, path: str, weights: AdapterWeights | None) -> tuple[AdapterWeights, LoadedAdapter]:
        assert self._reader is not None and self._shapes is not None
        try:
            weights = weights or self._reader.read(path)
            return weights, loaded(weights, self._stacks, self._shapes)
        except LookupError as error:
            raise AdapterRefused("missing", str(error)) from error
        except (ValueError, OSError) as error:
            raise AdapterRefused("invalid", str(error)) from error

    def _check_free(self, name: str, in_place: bool) -> None:
        if name == self._model:
            raise AdapterRefused("taken", f"{name!r} is the name of the model itself")
        if name in self._entries and not in_place:
            raise AdapterRefused("taken", f"an adapter is called {name!r} already")

    def _use(self, name: str) -> None:
        """Adapter `name`, in host memory, is the one used last. Another may have to go."""
        self._recent = [*(each for each in self._recent if each != name), name]
        while self._most is not None and len(self._recent) > self._most:
            self._entries[self._recent.pop(0)].loaded = None

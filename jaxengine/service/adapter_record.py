"""The adapters that an engine serves, in a file, so that the engine that follows after a crash serves the same.

The launcher names the file and removes it when the server ends: a new server serves what its options name.
"""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from jaxengine.request.interface import AdapterRefused, DrivenEngine, ServedAdapter

logger = logging.getLogger(__name__)


class AdapterRecord:
    """One such file; it is there once adapters have changed while the engine served."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, adapters: Sequence[ServedAdapter]) -> None:
        """Note that `adapters` are served. A disk that is full is a line in the log: they are served all the same."""
        unfinished = self._path.with_name(f"{self._path.name}.new")
        try:
            unfinished.write_text(json.dumps([[adapter.name, adapter.path] for adapter in adapters]))
            os.replace(unfinished, self._path)
        except OSError as error:
            logger.warning("a restarted engine will not know of the last change of adapters: %s", error)

    def restore(self, engine: DrivenEngine) -> None:
        """Have `engine`, which serves what its options name, serve what is noted. What is gone by now is left out."""
        try:
            noted = dict[str, str](json.loads(self._path.read_text()))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError) as error:
            logger.error("cannot tell which adapters were served before: %s", error)
            return
        served = {adapter.name: adapter.path for adapter in engine.adapters()}
        for name in served.keys() - noted.keys():
            engine.unload_adapter(name)
        for name, path in noted.items():
            if served.get(name) == path:
                continue
            try:
                engine.load_adapter(name, path, in_place=name in served)
            except AdapterRefused as error:
                logger.error("adapter %r is not served any more: %s", name, error)

"""The adapters that an engine serves, in a file, so that the engine that follows after a crash serves the same.

The launcher names the file and removes it when the server ends: a new server serves what its options name. Once there
is a note the options' adapters no longer count: one may be gone that was unloaded, or replaced, long before.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxengine.request.interface import AdapterRefused, DrivenEngine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Noted:
    """What an engine served.

    adapters: their paths by their names.
    max_loras, max_lora_rank: the room that it kept for them.
    """

    adapters: Mapping[str, str]
    max_loras: int
    max_lora_rank: int

    def restore(self, engine: DrivenEngine) -> None:
        """Have `engine` serve these, whatever it serves now. What is gone by now is left out."""
        served = {adapter.name: adapter.path for adapter in engine.adapters()}
        for name, path in served.items():
            if self.adapters.get(name) != path:
                engine.unload_adapter(name)
        for name, path in self.adapters.items():
            if served.get(name) == path:
                continue
            try:
                engine.load_adapter(name, path)
            except AdapterRefused as error:
                logger.error("adapter %r is not served any more: %s", name, error)


class AdapterRecord:
    """One such file; it is there once adapters have changed while the engine served."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, engine: DrivenEngine) -> None:
        """Note what `engine` serves. A disk that is full is a line in the log: the adapters are served all the same."""
        adapters = {adapter.name: adapter.path for adapter in engine.adapters()}
        description = engine.description
        noted = Noted(adapters, description.max_adapters, description.max_adapter_rank)
        unfinished = self._path.with_name(f"{self._path.name}.new")
        try:
            unfinished.write_text(json.dumps(asdict(noted)))
            os.replace(unfinished, self._path)
        except OSError as error:
            logger.warning("a restarted engine will not know of the last change of adapters: %s", error)

    def read(self) -> Noted | None:
        """What was noted last; None if nothing was, or it cannot be read."""
        try:
            return Noted(**json.loads(self._path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            logger.error("cannot tell which adapters were served before: %s", error)
            return None

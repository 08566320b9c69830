"""The default model's server of this process. It holds gigabytes, and takes 20 s of a core until it is at rest: it
stays for the next module if that asks it too, and for no other.
"""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from convert.cache import locked
from tests import shared_cache
from tests.servers import Server, serving
from tests.xla import AS_SERVED

FIXTURE = "smollm2"
ASKING = pytest.StashKey[set[Path]]()  # modules that do


def asking_default_model(items: list[pytest.Item]) -> set[Path]:
    return {item.path for item in items if FIXTURE in getattr(item, "fixturenames", ())}


class DefaultModel:
    """At most one server, and at most two on a machine, however many processes share the tests. Compiled as for its
    users. The first time on a machine, the model is fetched.
    """

    def __init__(self) -> None:
        self._open = ExitStack()
        self._server: Server | None = None

    def serve(self, directory: Path) -> Server:
        """The server that runs, or another if a test has ended that."""
        if self._server is None or self._server.process.poll() is not None:
            self.stop()
            place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2
            self._open.enter_context(locked(shared_cache.ROOT / f"smollm2-{place}"))
            server = self._open.enter_context(serving(directory, env=AS_SERVED))
            server.wait_ready()
            self._server = server
        return self._server

    def stop(self) -> None:
        self._server = None
        self._open.close()

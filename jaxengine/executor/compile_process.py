"""A second process that compiles what a server on a CPU does not have yet, while that server answers requests.

XLA compiles on threads of its own, which no API names and whose priority does not follow the caller's (JAX 0.10.2), so
inside the server they take their half of the cores from the steps. The kernel gives this process only what the server
leaves. Its results go through the compile cache: the server loads each of them in half a second of CPU time.
"""

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

logger = logging.getLogger(__name__)

PROGRAM = "jaxengine.executor.compile_program"
POLICY = os.SCHED_IDLE
# A process that gets so little of the cores that it brings nothing for so long is no longer waited for: the server
# compiles that one itself, at the price of some seconds of slow steps. So everything is compiled in the end.
STARVED_SECONDS = 30.0


class Recipe(Protocol):
    """How the process finds out what an engine compiles. It is pickled."""

    def jobs(self, compile_cache: Path) -> Mapping[Hashable, Callable[[], Any]]:
        """What to call for each executable, by name. The executables are kept beside `compile_cache`."""
        ...


class CompileProcess:
    """Compiles into the compile cache in `directory`. The process starts when it is first needed, and ends with the
    thread that needed it first.
    """

    def __init__(self, recipe: Recipe, directory: Path) -> None:
        self._recipe = recipe
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 — the process's stderr, as long as this object
        self._unanswered = 0
        self._closed = False

    def compile(self, name: Hashable) -> bool:
        """True once the process has compiled `name`; False after `STARVED_SECONDS`, or if the process has ended."""
        if self._closed:
            return False
        try:
            connection = self._connection or self._start()
            connection.send(name)
            self._unanswered += 1
            deadline = time.monotonic() + STARVED_SECONDS
            while self._unanswered and connection.poll(max(0.0, deadline - time.monotonic())):
                connection.recv()
                self._unanswered -= 1
        except (OSError, EOFError):
            if not self._closed:
                logger.warning("the compile process ended; this process compiles the rest%s", self._last_words())
            self.close()
            return False
        return self._unanswered == 0

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        """The last line that the process wrote to stderr."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((f": {line}" for line in reversed(lines) if line.strip()), "")

    def _start(self) -> "Connection[Any, Any]":
        ours, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", PROGRAM, *map(str, (theirs.fileno(), os.getpid(), POLICY))],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=self._errors,
                env={**os.environ, "JAX_PLATFORMS": "cpu"},  # whatever devices there are: this one computes nothing
            )
        if self._closed:  # meanwhile
            self._process.kill()
        ours.send((self._directory, self._recipe))
        self._connection = ours
        return ours

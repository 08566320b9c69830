"""Grammars of strangers are tried by a helper process before the engine compiles them.

See `vet_process` for how, and for the limits. Its answers are kept by the grammar's content, refusals too, so that a
grammar that is sent again costs nothing.
"""

import contextlib
import hashlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from jaxengine.grammar.grammar import Grammar
from jaxengine.grammar.vet_process import LASTING

logger = logging.getLogger(__name__)

PATIENCE = 60.0  # seconds for an answer, on a busy machine and with a tokenizer still to be read
MAX_KEPT = 4096  # answers, of at most 300 characters each
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # a process that has few pages is forked soon
PACKAGES = str(Path(__file__).absolute().parents[2])


class VettingError(RuntimeError):
    """Grammars cannot be tried, whatever they are."""


class Vetting:
    """Tries grammars against the tokenizer in `directory`; see `load_tokenizer` for the arguments.

    The helper process starts with `start` or when it is first needed, and again when it has died. It ends with
    `close`, or with this process. All methods may be called from any thread.
    """

    def __init__(self, directory: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._arguments = [str(directory.absolute()), str(vocab_size), *map(str, eos_token_ids)]
        self._lock = threading.Lock()
        self._helper: Helper | None = None
        self._closed = False
        self._kept: OrderedDict[bytes, str] = OrderedDict()  # answers by digests of grammars, the latest used last

    def start(self) -> None:
        """Have the helper read its tokenizer now. Does not wait for it; one that cannot start is tried again later."""
        try:
            self._running()
        except VettingError as error:
            logger.warning("no grammars for now: %s", error)

    def knows(self, grammar: Grammar) -> bool:
        """Whether `check` has the answer already."""
        with self._lock:
            return _digest(grammar.encoded()) in self._kept

    def check(self, grammar: Grammar) -> str:
        """Why a grammar is refused, in one line of at most 300 characters for its sender; "" if it is fine.

        Raises:
            VettingError: the helper cannot be started, dies twice in a row, or `close` was called.
        """
        encoded = grammar.encoded()
        digest = _digest(encoded)
        with self._lock:
            if digest in self._kept:
                self._kept.move_to_end(digest)
                return self._kept[digest]
        answer = self._ask(encoded)
        message = answer[1:].decode(errors="replace")
        if answer.startswith(LASTING):
            self._keep(digest, message)
        return message

    def refuse(self, grammar: Grammar, reason: str) -> None:
        """From now on: `check` gives `reason`."""
        self._keep(_digest(grammar.encoded()), reason)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._helper is not None:
                self._helper.close()

    def _ask(self, grammar: bytes) -> bytes:
        for _ in range(2):
            helper = self._running()
            with contextlib.suppress(OSError):
                if answer := helper.ask(grammar):
                    return answer
            if not self._closed:
                logger.warning("the process that tries grammars ended%s", helper.last_words())
            self._discard(helper)
        raise VettingError("grammars cannot be checked now")

    def _running(self) -> "Helper":
        with self._lock:
            if self._closed:
                raise VettingError("the engine is shutting down")
            if self._helper is None:
                try:
                    self._helper = Helper(self._arguments)
                except OSError as error:
                    raise VettingError(f"the process that tries grammars cannot start: {error.strerror}") from error
            return self._helper

    def _discard(self, helper: "Helper") -> None:
        with self._lock:
            if self._helper is helper:
                self._helper = None
                helper.close()

    def _keep(self, digest: bytes, message: str) -> None:
        with self._lock:
            self._kept[digest] = message
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)


class Helper:
    """One life of the helper process."""

    def __init__(self, arguments: list[str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 — the process's stderr, as long as this object
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "jaxengine.grammar.vet_process", str(theirs.fileno()), *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=_environment(),
            )

    def ask(self, grammar: bytes) -> bytes:
        """The answer, or b"" if the process ends first. Raises OSError for that too, and after `PATIENCE`."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                socket.send_fds(self._control, [b"?"], [theirs.fileno()])
            ours.settimeout(PATIENCE)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # an answer came before all was read
                ours.sendall(grammar)
                ours.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: ours.recv(4096), b""))

    def close(self) -> None:
        """End the process, whatever it is doing; its children end with their grammars."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def last_words(self) -> str:
        """The last line that the process wrote to stderr."""
        with contextlib.suppress(ValueError, OSError):  # closed meanwhile
            lines = os.pread(self._errors.fileno(), 1 << 16, 0).decode(errors="replace").split("\n")
            return next((f": {line}" for line in reversed(lines) if line.strip()), "")
        return ""


def _digest(grammar: bytes) -> bytes:
    """The key of its answer."""
    return hashlib.sha256(grammar).digest()


def _environment() -> dict[str, str]:
    """Ours, with the directory of our packages last on the path: `-P` takes away the directory of a source tree."""
    path = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), PACKAGES]
    return {**HUGE_PAGES, **os.environ, "PYTHONPATH": os.pathsep.join(path)}

"""One life of the helper process, as the gateway has it: what it was asked, and what it answered."""

import asyncio
import contextlib
import fcntl
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from gateway.child_process import NEUTRAL_DIRECTORY, environment, python
from gateway.images.helper_messages import MAX_MESSAGE, Ending, Job, answer_of, cancellation

LARGE = 1 << 20  # bytes of a file, which take a millisecond to copy
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# A child of one thread takes no locks that another thread left; a process that has few pages is forked soon.
ENVIRONMENT = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")},
    **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), "1"),
    "TRANSFORMERS_VERBOSITY": "error",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


class HelperDied(Exception):
    """The process ended before it answered."""


class HelperLife:
    """Belongs to the event loop in which it is made. Raises OSError: the process cannot be started."""

    def __init__(self, program: str, arguments: tuple[str, ...]) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Ending]] = {}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 — the process's stderr, as long as this object
        with theirs:
            self._process = subprocess.Popen(
                python(program, str(theirs.fileno()), *arguments),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                cwd=NEUTRAL_DIRECTORY,
                env={**environment(os.environ), **ENVIRONMENT},
            )
        self._control.setblocking(False)
        self._loop.add_reader(self._control.fileno(), self._read)
        self._gone: asyncio.Task[int] | None = None
        self.answered = False  # anything, ever

    @property
    def ended(self) -> bool:
        return self._control.fileno() < 0

    async def run(self, job: Job, data: bytes, patches: memoryview) -> Ending:
        """How the work on the picture `data` ended; if well, its patches are written to `patches`.

        `job` is given its number here. Raises HelperDied.
        """
        if self.ended:
            raise HelperDied
        with _memory_file("picture", len(data)) as source, _memory_file("patches", patches.nbytes) as target:
            await _to_its_end(lambda: _write_all(source, memoryview(data)), in_thread=len(data) > LARGE)
            ending = await self._answer(job, source, target)
            if ending is Ending.DONE:
                await _to_its_end(lambda: _read_all(target, patches), in_thread=patches.nbytes > LARGE)
            return ending

    async def _answer(self, job: Job, source: int, target: int) -> Ending:
        number = next(self._numbers)
        answer = self._waiting[number] = self._loop.create_future()
        try:
            numbered = Job(number, job.format, job.width, job.height, job.detail, job.rows, job.columns)
            self._send(numbered.encoded(), [source, target])
            return await answer
        except asyncio.CancelledError:
            with contextlib.suppress(HelperDied):
                self._send(cancellation(number), [])
            raise
        finally:
            self._waiting.pop(number, None)

    def _send(self, message: bytes, files: list[int]) -> None:
        try:
            socket.send_fds(self._control, [message], files)
        except OSError:  # it has ended, or does not read
            raise HelperDied from None

    def _read(self) -> None:
        try:
            message = self._control.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.close()
            return
        self.answered = True
        number, ending = answer_of(message)
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(ending)

    def close(self) -> None:
        """End the process, whatever it is doing, with its children; who waits is told that it died."""
        if self.ended:
            return
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        self._process.kill()
        self._gone = self._loop.create_task(asyncio.to_thread(self._process.wait))
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(HelperDied())

    async def wait(self) -> None:
        """Until the process is gone, after `close`."""
        assert self._gone is not None
        await self._gone

    def last_words(self) -> str:
        """The last line that the process wrote to stderr."""
        with contextlib.suppress(ValueError, OSError):  # closed meanwhile
            lines = os.pread(self._errors.fileno(), 1 << 16, 0).decode(errors="replace").split("\n")
            return next((f": {line}" for line in reversed(lines) if line.strip()), "")
        return ""


async def _to_its_end(work: Callable[[], None], *, in_thread: bool) -> None:
    """`work()`, to its end even where nobody waits for it any more: what it writes to is closed then, and the next
    picture may be given the same descriptor.
    """
    if not in_thread:
        work()
        return
    task = asyncio.create_task(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


@contextmanager
def _memory_file(name: str, size: int) -> Iterator[int]:
    """A file in memory of exactly `size` bytes, for as long as somebody has it. Nobody can change its size."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        yield descriptor
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, source: memoryview) -> None:
    done = 0
    while done < source.nbytes:  # at most 2 GiB at a time
        done += os.pwrite(descriptor, source[done:], done)


def _read_all(descriptor: int, target: memoryview) -> None:
    """Copied rather than mapped: a map keeps a descriptor for as long as somebody has the patches."""
    done = 0
    while done < target.nbytes:
        done += os.preadv(descriptor, [target[done:]], done)

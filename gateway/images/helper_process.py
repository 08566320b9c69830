"""The program of the helper process that decodes pictures, each in a child of its own.

Decoders are native code with a long list of holes, and a picture of a few kilobytes may take gigabytes or minutes. So
this process loads the model's processor once and forks a child for every picture: the child shares the processor, and
whatever its picture does ends with it. The kernel enforces the limits (`gateway.images.confinement`). This process
itself decodes nothing and never looks at a picture: it passes files on and says how children ended.
"""

import contextlib
import gc
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from gateway.images.confinement import confine, end_with, keep_only, own_address_space, spare_memory
from gateway.images.decoding import OtherSize, decode, prepare
from gateway.images.helper_limits import Limits
from gateway.images.helper_messages import MAX_MESSAGE, Ending, Job, answer, dtype_of, job_of

WARM_SIZES = ((64, 48), (700, 500))  # pixels


class Processor(Protocol):
    """What of `ImageProcessor` is called here."""

    def plan(self, width: int, height: int, detail: Any) -> Any: ...

    def patches(self, picture: Image.Image, plan: Any) -> np.ndarray: ...


@dataclass
class Child:
    """A process that works on one picture.

    verdict: the read end of a pipe on which it writes one byte; it ends with the child.
    ends: the moment, in seconds of the monotonic clock, when it must have done so.
    """

    pid: int
    job: int
    verdict: int
    ends: float


class Nursery:
    """Starts a child for each job that comes over `control`."""

    def __init__(self, control: socket.socket, processor: Processor, dtype: str, limits: Limits) -> None:
        self._control = control
        self._limits = limits
        self._processor = processor
        self._dtype = dtype_of(dtype)
        self._own_pid = os.getpid()
        self._children: dict[int, Child] = {}  # by `verdict`

    def run(self) -> None:
        """Until the gateway is gone."""
        try:
            while self._wait():
                self._end_late()
        except (ConnectionError, BrokenPipeError):
            pass
        for child in list(self._children.values()):
            self._end(child)

    def _wait(self) -> bool:
        """For something to do. False once the gateway is gone."""
        poll = select.poll()
        for descriptor in (self._control.fileno(), *self._children):
            poll.register(descriptor, select.POLLIN)
        next_end = min((child.ends for child in self._children.values()), default=None)
        patience = None if next_end is None else max(0.0, next_end - time.monotonic()) * 1000 + 1
        for descriptor, _ in poll.poll(patience):
            if descriptor == self._control.fileno():
                if not self._receive():
                    return False
            elif descriptor in self._children:
                self._finish(self._children[descriptor])
        return True

    def _receive(self) -> bool:
        message, files, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 2)
        if not message:
            return False
        job = job_of(message)
        if isinstance(job, Job):
            self._start(job, *files)
        else:
            for child in [each for each in self._children.values() if each.job == job]:
                self._end(child)
        return True

    def _start(self, job: Job, source: int, target: int) -> None:
        verdict, pen = os.pipe()
        try:
            pid = os.fork()
        except OSError:  # of memory or processes there are no more
            os.close(verdict)
            self._control.send(answer(job.number, Ending.MEMORY))
        else:
            ends = time.monotonic() + self._limits.wall_seconds
            if pid == 0:
                self._live(job, source, target, pen)
            self._children[verdict] = Child(pid, job.number, verdict, ends)
        for descriptor in (source, target, pen):
            os.close(descriptor)

    def _live(self, job: Job, source: int, target: int, pen: int) -> None:
        """The life of a child. Does not return."""
        try:
            end_with(self._own_pid)
            keep_only(source, target, pen)
            os.write(5, self._worked(job, 3, 4).value.encode())
        finally:
            os._exit(0)

    def _worked(self, job: Job, source: int, target: int) -> Ending:
        own = own_address_space()
        data = mmap.mmap(source, 0, prot=mmap.PROT_READ)
        patches = mmap.mmap(target, 0)
        os.close(source)
        os.close(target)
        memory = self._limits.memory_of(job) + 2 * len(data) + len(patches)
        try:
            confine(own + memory, self._limits.seconds_of(job))
            return self._work(job, data, patches)
        except MemoryError:
            return Ending.MEMORY

    def _work(self, job: Job, data: mmap.mmap, target: mmap.mmap) -> Ending:
        try:
            picture = decode(data[:], job.format, job.width, job.height)
        except MemoryError:
            raise
        except OtherSize:
            return Ending.OTHER_SIZE
        except Exception:  # whatever Pillow raises, of which it names a dozen kinds
            return Ending.UNDECODED
        try:
            found = self._processor.patches(picture, self._processor.plan(job.width, job.height, job.detail))
        except MemoryError:
            raise
        except Exception:  # sizes are what the gateway planned, so this is the processor's
            return Ending.UNPROCESSED
        if found.shape != (job.rows, job.columns):
            return Ending.UNPROCESSED
        np.frombuffer(target, self._dtype).reshape(found.shape)[:] = found
        return Ending.DONE

    def _finish(self, child: Child) -> None:
        """Say what the child wrote, or how it ended without a word."""
        written = os.read(child.verdict, 1)
        status = self._end(child)
        self._control.send(answer(child.job, _ending(written, status)))

    def _end_late(self) -> None:
        now = time.monotonic()
        for child in [each for each in self._children.values() if each.ends <= now]:
            self._end(child)
            self._control.send(answer(child.job, Ending.TIME))

    def _end(self, child: Child) -> int:
        """Leave the child no time to do more. Returns how it ended."""
        del self._children[child.verdict]
        os.close(child.verdict)
        os.kill(child.pid, signal.SIGKILL)
        return os.waitpid(child.pid, 0)[1]


def _ending(written: bytes, status: int) -> Ending:
    try:
        return Ending(written.decode("ascii"))
    except ValueError:
        pass
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return Ending.TIME
    return Ending.CRASH


def warm_up(processor: Processor) -> None:
    """Import what is imported only when it is used, which a child cannot."""
    prepare()
    for size in WARM_SIZES:
        for detail in ("low", "high"):
            with contextlib.suppress(ValueError):  # a size that this model does not see
                processor.patches(Image.new("RGB", size), processor.plan(*size, detail))


def serve(descriptor: int, dtype: str, load: Callable[[], Processor], limits: Limits = Limits()) -> None:
    """Signals are the gateway's to answer, which may still drain. Where memory runs out, the kernel ends this first."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # a sandbox may have /proc read-only
        Path("/proc/self/oom_score_adj").write_text("1000")
    processor = load()
    warm_up(processor)
    gc.collect()
    gc.freeze()  # a collection in a child would copy what it shares
    spare_memory()
    with socket.socket(fileno=descriptor) as control:
        Nursery(control, processor, dtype, limits).run()


def main(descriptor: str, dtype: str, directory: str, patches: str, tokens: str) -> None:
    for package in ("torch", "torchvision", "jax", "tensorflow"):
        sys.modules[package] = None  # type: ignore[assignment]  # transformers would import it: 3 s and 300 MB more
    from gateway.images.processor import ImageProcessor
    from gateway.images.room import Room

    def load() -> ImageProcessor:
        processor = ImageProcessor.open(Path(directory), Room(int(patches), int(tokens)))
        processor.load()
        return processor

    serve(int(descriptor), dtype, load)


if __name__ == "__main__":
    main(*sys.argv[1:])

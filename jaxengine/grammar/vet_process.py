"""The program of the helper process that tries grammars, one in each of its children.

A grammar of a hundred characters can take gigabytes or minutes, and neither a thread nor llguidance's limits stop it.
So this process reads the tokenizer once and forks a child for every grammar: the child shares the tokenizer, and
whatever its grammar does ends with it. The kernel enforces the limits, so they hold whatever happens to this process,
which computes nothing itself and never sees a grammar: it passes sockets on and words how children ended.

What is tried here is compiled again by the engine, within what these limits allow. Neither may take the cores from the
engine's steps: a child that is not done soon goes on as what the kernel runs last (`NICE`), and if many come, they
begin so.
"""

import contextlib
import ctypes
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from llguidance import LLTokenizer

from jaxengine.grammar.grammar import Grammar
from jaxengine.grammar.tokenizer import load_tokenizer
from jaxengine.grammar.trial import trial

CPU_LIMIT = 1.0  # seconds for one grammar; of 400 schemas of a public collection the 99th percentile took 0.045
WALL_LIMIT = 2.0  # seconds
MEMORY_LIMIT = 256 << 20  # bytes of address space beside those of this process; ordinary schemas take below 1 MiB
STACK_LIMIT = 1 << 20  # bytes; the engine's threads have at least twice as many

SOON = 0.05  # seconds of CPU time
NICE = 19
AT_ONCE = 4  # children that are not slow yet, and the same number that are
SHARE = 0.1  # of one core, for all that is done here before it is NICE
BURST = 0.5  # seconds of that which may have been saved up

# How an answer begins: whether the same grammar would get it again.
LASTING, PASSING = b"L", b"P"
CANCELLED = "too many grammars that are slow to compile came at once; try again later"
ENDINGS: dict[int, tuple[bytes, str]] = {
    signal.SIGPROF: (LASTING, f"it takes more than {CPU_LIMIT:g} s of processor time to compile"),
    signal.SIGALRM: (PASSING, f"it could not be compiled within {WALL_LIMIT:g} s"),
    signal.SIGABRT: (LASTING, f"it takes more than {MEMORY_LIMIT >> 20} MiB of memory to compile"),
    signal.SIGSEGV: (LASTING, "it is nested too deeply or has too many parts"),
}
FAILED = (PASSING, "it could not be compiled")


@dataclass
class Child:
    """A process that tries one grammar.

    asker: the socket on which the engine sends the grammar and awaits an answer.
    verdict: the read end of a pipe on which the child writes it; it ends with the child.
    """

    pid: int
    asker: socket.socket
    verdict: int
    nice: bool
    slow: bool = False

    def cpu_seconds(self) -> float:
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def answer(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody waits for it any more
            self.asker.sendall(message)
            self.asker.shutdown(socket.SHUT_RDWR)  # the child has the socket too

    def close(self) -> None:
        self.asker.close()
        os.close(self.verdict)


class Nursery:
    """Starts a child for each socket that comes over `control`, and answers for those that cannot."""

    def __init__(self, control: socket.socket, tokenizer: LLTokenizer, eos_token_ids: list[int]) -> None:
        self._control = control
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._address_space = own_address_space() + MEMORY_LIMIT
        self._askers: deque[socket.socket] = deque()  # that wait for a child
        self._children: dict[int, Child] = {}  # by `verdict`
        self._credit = BURST  # seconds of CPU time that may be spent before children begin NICE
        self._credited = time.monotonic()
        self._own_seconds = time.process_time()  # of CPU time, mostly for forks, taken from the credit

    def run(self) -> None:
        """Until the engine is gone."""
        while self._wait():
            self._look_after()
            self._settle()
            while self._askers and self._room():
                self._start(self._askers.popleft())

    def _wait(self) -> bool:
        """For something to do. False once the engine is gone."""
        poll = select.poll()
        for descriptor in (self._control.fileno(), *self._children):
            poll.register(descriptor, select.POLLIN)
        watched = bool(self._askers) or any(not child.slow for child in self._children.values())
        for descriptor, _ in poll.poll(SOON / 2 * 1000 if watched else None):
            if descriptor in self._children:
                self._finish(self._children[descriptor])
                continue
            message, askers, _, _ = socket.recv_fds(self._control, 1, 1)
            if not message:
                return False
            self._askers.extend(socket.socket(fileno=asker) for asker in askers)
        return True

    def _room(self) -> bool:
        """Whether another child may start: not if even the forks would take more than their share."""
        return self._credit > -BURST and sum(not child.slow for child in self._children.values()) < AT_ONCE

    def _start(self, asker: socket.socket) -> None:
        nice = self._credit <= 0
        verdict, pen = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self._live(asker.fileno(), pen, nice)
            finally:
                os._exit(os.EX_SOFTWARE)
        os.close(pen)
        self._children[verdict] = Child(pid, asker, verdict, nice)

    def _live(self, asker: int, pen: int, nice: bool) -> None:
        """The life of a child."""
        signal.setitimer(signal.ITIMER_REAL, WALL_LIMIT)  # the signals of both end the process
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT)
        os.dup2(asker, 0)
        os.dup2(pen, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        if nice:
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_STACK, (STACK_LIMIT, STACK_LIMIT))
        resource.setrlimit(resource.RLIMIT_AS, (self._address_space, self._address_space))
        try:
            grammar = Grammar.decoded(sys.stdin.buffer.read())
            message = trial(self._tokenizer, self._eos_token_ids, grammar)
        except MemoryError:
            os.abort()
        os.write(1, LASTING + message.encode(errors="replace"))

    def _finish(self, child: Child) -> None:
        """Pass on what the child wrote, or how it ended without a word."""
        answer = os.read(child.verdict, 1 << 12)
        if answer:
            child.answer(answer)
        status = self._end(child)
        if not answer:
            lasts, message = ENDINGS.get(os.WTERMSIG(status), FAILED) if os.WIFSIGNALED(status) else FAILED
            child.answer(lasts + message.encode())
        child.close()

    def _end(self, child: Child) -> int:
        """Leave the child no time to clean up. Returns how it ended."""
        del self._children[child.verdict]
        os.kill(child.pid, signal.SIGKILL)
        _, status, used = os.wait4(child.pid, 0)
        if not child.nice:
            self._credit -= used.ru_utime + used.ru_stime
        return status

    def _look_after(self) -> None:
        """Children that have become slow leave their place, and the cores, to others."""
        for child in list(self._children.values()):
            if child.slow or (spent := child.cpu_seconds()) < SOON:
                continue
            child.slow = True
            if sum(each.slow for each in self._children.values()) > AT_ONCE:
                child.answer(PASSING + CANCELLED.encode())
                self._end(child)
                child.close()
            elif not child.nice:
                os.setpriority(os.PRIO_PROCESS, child.pid, NICE)
                self._credit -= spent
                child.nice = True

    def close(self) -> None:
        """End the children."""
        for child in self._children.values():
            os.kill(child.pid, signal.SIGKILL)

    def _settle(self) -> None:
        """Bring the credit up to date."""
        now, spent = time.monotonic(), time.process_time()
        earned = SHARE * (now - self._credited)
        self._credit = min(BURST, self._credit + earned - (spent - self._own_seconds))
        self._credited, self._own_seconds = now, spent


def own_address_space() -> int:
    """Bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def give_back_memory() -> None:
    """To the kernel, which a fork spares then: a tokenizer of 262,144 ids leaves 250 MiB behind that are not used.

    With this and `HUGE_PAGES` in `vetting`, a fork of that process takes 2.5 ms instead of 20.
    """
    with contextlib.suppress(AttributeError):  # not with every C library
        ctypes.CDLL(None).malloc_trim(0)


def main(descriptor: int, directory: Path, vocab_size: int, eos_token_ids: list[int]) -> None:
    """Signals are the engine's to answer, which may still drain. Where memory runs out, the kernel ends this first."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # a sandbox may have /proc read-only
        Path("/proc/self/oom_score_adj").write_text("1000")
    tokenizer = load_tokenizer(directory, vocab_size, eos_token_ids)
    # What llguidance makes only once is then there in every child.
    trial(tokenizer, eos_token_ids, Grammar("json_schema", "{}"))
    gc.collect()
    gc.freeze()  # a collection in a child would copy what it shares
    give_back_memory()
    with socket.socket(fileno=descriptor) as control:
        nursery = Nursery(control, tokenizer, eos_token_ids)
        nursery.run()
        nursery.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), [int(each) for each in sys.argv[4:]])

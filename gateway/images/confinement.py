"""What a process may still do that decodes a stranger's picture: compute, and write into what it already has.

The kernel enforces it, so it holds for native code that a picture has taken over. The process opens no file, socket or
process, and ends with its parent.
"""

import ctypes
import os
import resource
import signal
from pathlib import Path

from gateway.images.system_calls import allow_computing_only

NICE = 12  # of a core that streams of text want too, 6 % are left to it: at 19, 1.5 %, and no picture was done in time
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_libc = ctypes.CDLL(None, use_errno=True)


def own_address_space() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def spare_memory() -> None:
    """Give what malloc keeps back to the kernel, which a fork need not copy then."""
    if hasattr(_libc, "malloc_trim"):  # glibc's
        _libc.malloc_trim(0)


def keep_only(*descriptors: int) -> None:
    """`descriptors` become 3, 4 … and all others are closed; 0, 1 and 2 lead nowhere."""
    top = max(descriptors) + 1
    nowhere = os.open(os.devnull, os.O_RDWR)
    spares = [os.dup2(each, max(top, nowhere + 1) + number) for number, each in enumerate(descriptors)]
    for standard in range(3):
        os.dup2(nowhere, standard)
    for number, spare in enumerate(spares):
        os.dup2(spare, 3 + number)
    os.closerange(3 + len(descriptors), os.sysconf("SC_OPEN_MAX"))


def end_with(parent: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os._exit(os.EX_UNAVAILABLE)


def confine(address_space: int, cpu_seconds: int) -> None:
    """For good. Descriptors that are open stay so. Limits hold on every Linux, the filter where there is one."""
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_AS: address_space,
    }
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))  # SIGXCPU, then SIGKILL
    allow_computing_only()

"""A filter of the kernel's (seccomp) through which a process can compute, and cannot reach any other.

Limits leave a decoder that a picture has taken over what every process of a user may do: signal the others, read their
memory, start more. The filter answers all calls but these with EPERM.
"""

import ctypes
import errno
import platform
import struct

# Memory, time, descriptors that are open, the end. Numbers of Linux's x86-64, and of its table for newer machines.
_CALLS = (
    ("read", 0, 63),
    ("write", 1, 64),
    ("close", 3, 57),
    ("fstat", 5, 80),
    ("lseek", 8, 62),
    ("mmap", 9, 222),
    ("mprotect", 10, 226),
    ("munmap", 11, 215),
    ("brk", 12, 214),
    ("rt_sigprocmask", 14, 135),
    ("rt_sigreturn", 15, 139),
    ("sched_yield", 24, 124),
    ("mremap", 25, 216),
    ("madvise", 28, 233),
    ("nanosleep", 35, 101),
    ("exit", 60, 93),
    ("gettimeofday", 96, 169),
    ("futex", 202, 98),
    ("clock_gettime", 228, 113),
    ("clock_nanosleep", 230, 115),
    ("exit_group", 231, 94),
    ("getrandom", 318, 278),
    ("rseq", 334, 293),
)
_COLUMN = {"x86_64": 1, "aarch64": 2}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF: a word of the call's data, a jump, an end
_NUMBER, _ARCHITECTURE = 0, 4  # offsets of that data (linux/seccomp.h)
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def allow_computing_only() -> bool:
    """For good. False, and nothing is changed, where the kernel or this kind of processor has no such filter.

    The process must have given up to gain privileges (PR_SET_NO_NEW_PRIVS).
    """
    machine = platform.machine()
    if machine not in _COLUMN:
        return False
    numbers = [int(row[_COLUMN[machine]]) for row in _CALLS]
    code = _program(_AUDIT_ARCH[machine], numbers)
    program = _Program(len(code) // 8, code)
    return ctypes.CDLL(None).prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0


def _program(architecture: int, numbers: list[int]) -> bytes:
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for left, number in zip(range(len(numbers), 0, -1), numbers, strict=True):
        steps.append((_EQUAL, left, 0, number))  # over the numbers that are left, and the refusal
    steps += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)

"""What ptxas says of a kernel that XLA has left in a file, and what its PTX shows."""

import dataclasses
import re
import subprocess
from pathlib import Path

from tests.gpu_compile.toolchain import toolchain

ORDERED = re.compile(
    r"bar\.sync(?:(?!st\.global|bar\.sync).)*?"  # nothing is stored between the barrier and
    r"\b(atom\.[\w.]+)(?=(?:(?!ld\.global).)*?bar\.sync)",  # the atomic, nothing loaded from it to the next barrier
    re.S,
)
LOOP = re.compile(r"^(\$L\w+):(.*?)bra(?:\.uni)?\s+\1;", re.S | re.M)
LOAD = re.compile(r"\bld\.global\S*\s+\{?\s*(%\w+(?:,\s*%\w+)*)")
PRODUCT = re.compile(r"(wgmma\.mma_async|mma\.sync)\S*")
SERIALISED = "wgmma.mma_async instructions are serialized"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What one kernel needs and does, per thread (registers, spills) and per program (shared)."""

    registers: int
    spilled: int  # bytes
    shared: int  # bytes
    wide_copies: int  # asynchronous copies of 16 bytes, straight to shared memory
    narrow_copies: int
    products: list[str]  # kinds of tensor core instruction
    serialised: bool  # whether each of them waits for the one before
    awaited: int  # loads to registers that a trip of a loop of products needs before it ends: it waits for memory
    atomics: list[str]  # atomic instructions with a barrier behind all stores before, and before all loads behind


def kernel(path: Path, sequence: str) -> tuple[str, Kernel]:
    """The name of the kernel in `path`, PTX, and what there is to say; `sequence` is of XLA's thunks."""
    ptxas = next(toolchain().glob("**/bin/ptxas"))
    command = [str(ptxas), "-v", "-arch=sm_90a", str(path), "-o", "/dev/null"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    text = path.read_text()
    name = re.findall(r"\.entry (\w+)", text)[0]
    shared = re.findall(rf"{name} grid.*shared_memory: (\d+)", sequence)[0]
    return name, Kernel(
        registers=int(re.findall(r"Used (\d+) registers", said)[0]),
        spilled=sum(map(int, re.findall(r"(\d+) bytes spill", said))),
        shared=int(shared),
        wide_copies=len(re.findall(r"cp\.async\.cg\.shared\.global .*, (?:0x10|16)\b", text)),
        narrow_copies=len(re.findall(r"cp\.async\.ca", text)),
        products=sorted(set(PRODUCT.findall(text))),
        serialised=SERIALISED in said,
        awaited=awaited(text),
        atomics=ORDERED.findall(text),
    )


def awaited(ptx: str) -> int:
    """Loads in loops of products whose registers an instruction of the same trip reads, but to hand them on."""
    count = 0
    for _, body in LOOP.findall(ptx):
        if not PRODUCT.search(body):
            continue
        for load in LOAD.finditer(body):
            loaded = set(re.findall(r"%\w+", load[1]))
            behind = (line.strip() for line in body[load.end() :].split(";"))
            count += any(loaded & set(re.findall(r"%\w+", line)) for line in behind if not line.startswith("mov."))
    return count

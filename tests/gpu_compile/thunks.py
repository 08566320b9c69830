"""Reading XLA:GPU's thunk sequence: what the host launches in a step, and what runs inside those launches."""

import math
import re
from pathlib import Path

THUNK = re.compile(r"^( *)\d+: k(\w+)")
BRANCHES = {"Conditional", "While"}
KERNELS = {"Kernel", "CustomKernel", "Gemm", "CublasLtMatmul", "CuDnn"}


def read(dump: Path) -> str:
    """The final sequence of the only program dumped to `dump`: after XLA's passes, where they changed anything."""
    *_, final = sorted(dump.glob("*.thunk_sequence*.txt"))
    return final.read_text()


def launched(text: str) -> list[str]:
    """The thunks that the host itself starts, in order; one CommandBuffer is a step that is one CUDA graph."""
    found = map(THUNK.match, text.splitlines())
    return [thunk[2] for thunk in found if thunk and not thunk[1]]


def kernels(text: str) -> int:
    """How many kernels there are, at any depth. The body of a loop counts once."""
    return sum(thunk[2] in KERNELS for thunk in map(THUNK.match, text.splitlines()) if thunk)


def always(text: str) -> int:
    """How many of them run in every step: those in no branch and no loop."""
    count, hidden = 0, math.inf  # the indent of the branch or loop that the line may be in
    for thunk in filter(None, map(THUNK.match, text.splitlines())):
        indent = len(thunk[1])
        if indent > hidden:
            continue
        hidden = indent if thunk[2] in BRANCHES else math.inf
        count += thunk[2] in KERNELS
    return count

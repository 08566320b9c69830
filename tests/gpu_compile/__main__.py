"""Whole models compiled for H200s that are not there: `python -m tests.gpu_compile [NAME…]` prints what came of them,
`python -m tests.gpu_compile table` of several models side by side.

The tests compile all 32 layers of the 8B once, and else two or four of a model, since all are alike. What this prints
is in README.md.
"""

import sys
import tempfile
import time
from pathlib import Path

from tests.gpu_compile import table, toolchain
from tests.gpu_compile.programs import PROGRAMS, WHOLE


def main(names: list[str]) -> None:
    if names == ["table"]:
        with tempfile.TemporaryDirectory() as directory:
            print(table.text(toolchain.run("tests.gpu_compile.table", Path(directory))[0]))
        return
    unknown = [name for name in names if name not in PROGRAMS | WHOLE]
    if unknown:
        sys.exit(f"no program is called {', '.join(unknown)}; there are {', '.join(PROGRAMS | WHOLE)}")
    for name in names or WHOLE:
        with tempfile.TemporaryDirectory() as directory:
            begun = time.monotonic()
            facts, _ = toolchain.run("tests.gpu_compile.programs", Path(directory), name)
            print(f"{name}: {time.monotonic() - begun:.0f} s, {facts[name]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""`python -m tests.gpu_compile.sources LIST MODULE ARGUMENT…`: run MODULE as a program, and write to LIST, as JSON,
which files of this checkout it was made of: every module that it has loaded, the data beside this one, and what it has
noted.
"""

import importlib.util
import json
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.shared_cache import CHECKOUT

DATA = Path(__file__).with_name("h200.txtpb")

_noted: set[str] = set()


def note(files: Iterable[str]) -> None:
    """This process has taken over what another made of `files`."""
    _noted.update(files)


def made_of(program: str) -> list[str]:
    """The files of `program`, which has run in this process, relative to the checkout."""
    spec = importlib.util.find_spec(program)  # it is no longer among the modules
    assert spec is not None and spec.origin is not None
    files = [Path(spec.origin), DATA]
    files += [Path(file) for each in list(sys.modules.values()) if (file := getattr(each, "__file__", None))]
    environment = Path(sys.prefix)
    ours = {each for each in files if each.is_relative_to(CHECKOUT) and not each.is_relative_to(environment)}
    return sorted({*_noted, *(str(each.relative_to(CHECKOUT)) for each in ours)})


if __name__ == "__main__":
    listed, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    from tests.gpu_compile import sources  # which MODULE has told, not this program

    Path(listed).write_text(json.dumps(sources.made_of(module)))

"""The sections of a run and what each may cost. Each is a process of its own: `python -m tests.gpu.sections NAME …`.

A process that crashes, hangs or runs out of memory takes nothing with it but its own section, and gives all of the
device's memory back.
"""

import argparse
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.record import Record
from tests.gpu.scale import SCALES

KNOWN = "KNOWN_ANSWERS"  # environment variable: where a CPU's answers are that were made before
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Section:
    """A module of this package with `run(record, scale)`, and the seconds it may take on an H200."""

    module: str
    seconds: float


# In the order of what is worth having when time runs out; `restart` needs what `llama` compiled.
SECTIONS = {
    "ceilings": Section("tests.gpu.ceilings", 40),
    "correctness": Section("tests.gpu.correctness", 130),
    "llama": Section("tests.gpu.llama", 240),
    "restart": Section("tests.gpu.restart", 50),
    "server": Section("tests.gpu.server", 60),
    "races": Section("tests.gpu.races", 50),
    "products": Section("tests.gpu.products", 90),
    "quantised": Section("tests.gpu.quantised", 140),
    "tables": Section("tests.gpu.tables", 70),
    "small cache": Section("tests.gpu.small_cache", 40),
    "counters": Section("tests.gpu.counters", 90),
    "tilings": Section("tests.gpu.tilings", 180),
    "peers": Section("tests.gpu.peers", 150),
    "arrangements": Section("tests.gpu.arrangements", 110),
    "towers": Section("tests.gpu.towers", 90),
    "options": Section("tests.gpu.options", 120),
    "experts": Section("tests.gpu.experts", 130),
    "adapters": Section("tests.gpu.adapters", 90),
    "speculation": Section("tests.gpu.speculation", 90),
    "beams": Section("tests.gpu.beams", 60),
    "samplers": Section("tests.gpu.samplers", 60),
    "grammars": Section("tests.gpu.grammars", 90),
    "families": Section("tests.gpu.families", 150),
}


def spawn(name: str, scale: str, path: Path, seconds: float) -> str:
    """Run a section; what went wrong, or ""."""
    command = [sys.executable, "-m", "tests.gpu.sections", name, scale, str(path)]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the section's own children too
            return f"stopped after {seconds:.3g} s"
    return "" if code == 0 else f"ended with {code}"


def environment(cache: Path) -> Mapping[str, str]:
    """For the processes of a run: one compile cache, fresh, and the memory a server would take."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "XLA_CLIENT_MEM_FRACTION": "0.95",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SECTIONS)
    parser.add_argument("scale", choices=SCALES)
    parser.add_argument("record", type=Path)
    given = parser.parse_args()
    record = Record(given.record)
    with record.part(given.name):
        importlib.import_module(SECTIONS[given.name].module).run(record, SCALES[given.scale])


if __name__ == "__main__":
    main()

"""`text-generation-launcher` in front of the mock engine, as a process: real sockets, real signals, no model.

python -m tests.mock_launcher LAUNCHER_OPTIONS… -- MOCK_ENGINE_OPTIONS…
"""

import functools
import os
import sys
from collections.abc import Sequence

from gateway import child_process
from gateway.config.options import Options
from gateway.launcher import launch
from gateway.processes import engine_process
from gateway.processes.engine_process import EnginePlace

HEEDED = ("--lora-adapters=", "--enable-lora", "--max-loras=", "--adapters-file=", "--speculate=")  # by the mock


def main(argv: list[str]) -> int:
    split = argv.index("--") if "--" in argv else len(argv)
    ours, its = argv[:split], argv[split + 1 :]
    return launch(ours, os.environ, functools.partial(mock_command, its))


def mock_command(its: Sequence[str], options: Options, place: EnginePlace, parent: int) -> list[str]:
    """The mock engine's command line, with its own options `its`."""
    real = engine_process.command(options, place, parent)
    given = [each for each in real if each.startswith(HEEDED)]
    given += [
        f"--uds-path={place.socket}",
        f"--parent-pid={parent}",
        *(["--json-output"] if options.json_output else []),
    ]
    return child_process.python("tests.engine_mock", *given, *its)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

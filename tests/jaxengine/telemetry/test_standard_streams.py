"""Standard streams that are closed, full, gone, or of an encoding without a name's letters."""

import os
import subprocess
import sys

import pytest

from tests.processes import PATIENCE, ROOT

HOLD = "import os, sys; from jaxengine.telemetry.standard_streams import hold, say; hold(); "


def shell(program: str, redirections: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run a Python program with a shell's redirections."""
    command = ["sh", "-c", f'exec "$0" -c "$1" {redirections}', sys.executable, HOLD + program]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, timeout=PATIENCE
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_file_gets_no_number_of_a_closed_stream_and_writing_there_is_harmless(closed: str) -> None:
    program = "print(1, flush=True); print(2, file=sys.stderr, flush=True); sys.stdin.isatty(); "
    assert shell(program + "os._exit(os.open('/dev/null', 0) < 3)", closed).returncode == 0


def test_a_name_that_the_encoding_lacks_is_escaped() -> None:
    done = shell("sys.exit(say('modèle'))", "", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "mod\\xe8le\n", "")


def test_a_full_disk_is_one_line_and_its_own_exit_code() -> None:
    done = shell("sys.exit(say('words'))", ">/dev/full")
    said = "error: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (os.EX_IOERR, said)

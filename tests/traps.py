"""Traps: files that Python would import instead of its own modules or ours, and a server started among them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.processes import ROOT, Launcher, listening_url

NAMES = (
    *("secrets.py", "json.py", "random.py", "site.py", "numpy.py", "jinja2.py"),
    *("gateway/__init__.py", "jaxengine/__init__.py", "convert/__init__.py", "tests/__init__.py", "pip/__init__.py"),
)


@dataclass
class Trapped(Launcher):
    """A launcher whose working directory is full of traps; `directory` is its runtime directory."""

    prefix: str

    @property
    def directory(self) -> Path:
        return Path(f"{self.prefix}-{self.url.rpartition(':')[2]}")


def set_traps(directory: Path) -> Path:
    """Write modules into `directory` that add their name to the returned file and end the process."""
    sprung = directory / "sprung"
    for name in NAMES:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(f"open({str(sprung)!r}, 'a').write({name!r} + ' ')\nraise SystemExit(99)\n")
    return sprung


@contextmanager
def in_a_trap(directory: Path, module: str, *options: str, env: dict[str, str] | None = None) -> Iterator[Trapped]:
    """Run `module`'s main as a console script in a directory of traps. Fails if one of them was imported."""
    (trap := directory / "trap").mkdir(exist_ok=True)
    sprung = set_traps(trap)
    (bin := directory / "bin").mkdir()
    script, log, prefix = bin / "launcher", directory / "server.log", f"{directory}/run"
    main = "main(sys.argv[1:])" if module.startswith("tests.") else "main()"
    script.write_text(f"import sys\nfrom {module} import main\nsys.exit({main})\n")
    flags = ("--port=0", "--hostname=127.0.0.1", f"--shard-uds-path={prefix}", *options)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(script), *flags], cwd=trap, env=environment, stdout=output, stderr=output, text=True
        )
    try:
        yield Trapped(process, listening_url(process, log), log, prefix)
        assert not sprung.exists(), f"{sprung.read_text()}was run"
    finally:
        process.terminate()
        process.wait()

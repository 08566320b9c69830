"""Commands of `docs/` that are marked run as they are written.

`<!-- run -->` before a block of `sh` marks one that needs nothing, `<!-- run: served -->` one that needs a server at
127.0.0.1:3000, for which a small one stands in at another port.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.toys import write_model
from tests.processes import PATIENCE, ROOT, MockLauncher, running_launcher

MARKED = re.compile(r"^<!-- run(?:: (served))? -->\n```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
ADDRESS = "127.0.0.1:3000"
BLOCKS = [
    pytest.param(kind, block, id=f"{page.stem}-{number}")
    for page in sorted((ROOT / "docs").glob("*.md"))
    for number, (kind, block) in enumerate(MARKED.findall(page.read_text()))
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockLauncher]:
    with running_launcher(write_model(tmp_path_factory.mktemp("docs"))) as running:
        running.wait_for(200)
        yield running


@pytest.mark.parametrize(("kind", "block"), BLOCKS)
def test_a_marked_command_runs(kind: str, block: str, request: pytest.FixtureRequest) -> None:
    if kind:
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        assert ADDRESS in block
        block = block.replace(ADDRESS, request.getfixturevalue("server").url.removeprefix("http://"))
        block = block.replace("curl ", "curl --fail-with-body --silent --show-error ")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "NO_PROXY": "*"}
    done = subprocess.run(["sh", "-euc", block], env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0 and done.stdout, done.stderr


def test_there_are_commands_of_both_kinds() -> None:
    assert {each.values[0] for each in BLOCKS} == {"", "served"}


def test_a_mark_stands_right_before_a_block() -> None:
    """Or a command would be taken to be run that is not."""
    for page in (ROOT / "docs").glob("*.md"):
        assert len(re.findall("<!-- run", page.read_text())) == len(MARKED.findall(page.read_text())), page.name

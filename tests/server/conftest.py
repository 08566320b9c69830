"""The tiny model behind a whole server, which starts fast: for tests of faults and floods."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Server, serving

# Few rows need few compiled graphs.
TINY_OPTIONS = ("--max-batch-size=8", "--max-batch-prefill-tokens=64")


@pytest.fixture(scope="session")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server, shared by the tests that leave it as they found it."""
    with serving(tmp_path_factory.mktemp("tiny-server"), f"--model-id={tiny_model}", *TINY_OPTIONS) as started:
        started.wait_ready()
        yield started

"""Servers that several test packages talk to, started only when asked for."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Server, serving

# Before PyTorch is imported: beside other work its two threads wait for each other, 97 s for what one does in 0.6 s.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The default model behind every route. The first time on a machine, it is fetched. It holds gigabytes, so not
    for longer than a module."""
    with serving(tmp_path_factory.mktemp("smollm2")) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers that can talk for 2,000 tokens, at about 1 ms each."""
    from tests.tiny import write_tiny  # imports torch, which most tests do without

    return write_tiny(tmp_path_factory.mktemp("tiny"), "llama2_gqa", max_position_embeddings=2048)

"""Servers and checkpoints that several test packages talk to, made only when asked for."""

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jaxengine.telemetry.logs import OURS
from tests import shared_cache
from tests.default_model import ASKING, DefaultModel, asking_default_model
from tests.servers import Server

Checkpoints = Callable[[str], Path]

# Before PyTorch is imported: beside other work its two threads wait for each other, 97 s for what one does in 0.6 s.
os.environ.setdefault("OMP_NUM_THREADS", "1")
shared_cache.share_compiles()
gc.set_threshold(50_000, 20, 50)  # what traces and lowers a tiny model's steps took 4.3 s of a core instead of 5.4

MANY_MAPS = 20_000
DEFAULT_MODEL = DefaultModel()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Processes that share the tests (`-n`) take a file each: first those that ask the default model, whose server a
    process then starts once; then the other slow ones, lest one begins at the end."""
    asking = config.stash[ASKING] = asking_default_model(items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: (item.path not in asking, item.path not in slow))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("cacheclear", False) and "PYTEST_XDIST_WORKER" not in os.environ:
        shared_cache.clear()


@pytest.fixture(scope="session")
def default_model() -> Iterator[DefaultModel]:
    yield DEFAULT_MODEL
    DEFAULT_MODEL.stop()


@pytest.fixture(scope="module")
def smollm2(default_model: DefaultModel, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """The default model behind every route."""
    return default_model.serve(tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module", autouse=True)
def no_default_model(request: pytest.FixtureRequest) -> None:
    """Beside modules that do not ask it."""
    if request.path not in request.config.stash[ASKING]:
        DEFAULT_MODEL.stop()


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """What a program says when it runs in this process; it must not silence the tests that come after it."""
    levels = {each: each.level for each in map(logging.getLogger, (None, *OURS))}
    yield
    for logger, level in levels.items():
        logger.setLevel(level)


@pytest.fixture(scope="module", autouse=True)
def memory_maps() -> Iterator[None]:
    """Frees what a module compiled. An executable takes tens of memory maps, of which Linux allows a process 65,530;
    LLVM does not check for the last and crashes."""
    yield
    if "jax" in sys.modules and _maps() > MANY_MAPS:
        sys.modules["jax"].clear_caches()
        gc.collect()
        assert _maps() < 2 * MANY_MAPS, "something keeps executables: the process will run out of memory maps"


def _maps() -> int:
    maps = Path("/proc/self/maps")
    return len(maps.read_bytes().splitlines()) if maps.exists() else 0


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers that can talk for 2,000 tokens, at about 1 ms each."""
    from tests.tiny import write_tiny  # imports torch, which most tests do without

    return write_tiny(tmp_path_factory.mktemp("tiny"), "llama2_gqa", max_position_embeddings=2048)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """`tiny(name)` is the directory of that Llama; shared, so never written to."""
    from tests.tiny import write_tiny

    return _written_once(tmp_path_factory.mktemp("tiny"), write_tiny)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Likewise of the other families."""
    from tests.families.zoo import write_zoo

    return _written_once(tmp_path_factory.mktemp("zoo"), write_zoo)


@pytest.fixture(scope="session")
def seq2seq(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Likewise of models with an encoder."""
    from tests.families.seq2seq import write_seq2seq

    return _written_once(tmp_path_factory.mktemp("seq2seq"), write_seq2seq)


def _written_once(root: Path, write: Callable[[Path, str], Path]) -> Checkpoints:
    return lambda name: root / name if (root / name).exists() else write(root, name)

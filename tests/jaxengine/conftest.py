"""Fixtures of the engine's tests. An engine takes seconds to compile, so tests of one configuration share it."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxengine.compile_cache import enable_compile_cache
from tests.jaxengine.engines import EngineOf, load
from tests.tiny import write_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny(name)` is the directory of that checkpoint; shared, so never written to."""
    root = tmp_path_factory.mktemp("tiny")
    return lambda name: root / name if (root / name).exists() else write_tiny(root, name)


@pytest.fixture(scope="session")
def engine_of(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> EngineOf:
    """`engine_of(name, **options)` is an engine serving that checkpoint, the same one for the same arguments."""
    enable_compile_cache(tmp_path_factory.mktemp("compiled"))
    return functools.cache(lambda name, **options: load(tiny(name), **options))

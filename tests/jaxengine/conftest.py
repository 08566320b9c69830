"""Fixtures of the engine's tests. An engine takes seconds to compile, so tests of one configuration share it."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import enable_compile_cache
from tests import shared_cache
from tests.jaxengine.engines import EngineOf, load


@pytest.fixture(scope="session")
def compile_cache() -> None:
    enable_compile_cache(shared_cache.COMPILED)


@pytest.fixture
def empty_compile_cache(compile_cache: None, tmp_path: Path) -> Iterator[Path]:
    """Its directory."""
    _keep_in(tmp_path / "compiled")
    yield tmp_path / "compiled"
    _keep_in(shared_cache.COMPILED)


def _keep_in(directory: Path) -> None:
    enable_compile_cache(directory)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def engine_of(tiny: Callable[[str], Path], compile_cache: None) -> EngineOf:
    """`engine_of(name, **options)` is an engine serving that checkpoint, the same one for the same arguments."""
    return functools.cache(lambda name, **options: load(tiny(name), **options))


@pytest.fixture(scope="session")
def wide(tiny: Callable[[str], Path], compile_cache: None) -> Engine:
    """32 rows, 64 pages, prompts in one step, and every bucket: a lone request runs other code than 32 do."""
    limits: dict[str, Any] = {"max_batch_size": 32, "max_batch_total_tokens": 1024, "max_batch_prefill_tokens": 512}
    return load(tiny("llama2_gqa"), every_bucket=True, **limits)


@pytest.fixture(scope="session")
def narrow(tiny: Callable[[str], Path], compile_cache: None) -> Engine:
    """16 rows, 64 pages, and a step of 16 tokens, one of each row: prompts come in chunks, most requests wait."""
    limits: dict[str, Any] = {"max_batch_size": 16, "max_batch_total_tokens": 1024, "max_batch_prefill_tokens": 16}
    return load(tiny("llama2_gqa"), **limits)

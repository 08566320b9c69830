"""A small model in this process, for each file of tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jaxengine.llm import LLM
from tests import shared_cache
from tests.jaxengine.shared_executables import shared_executables


@pytest.fixture(scope="package", autouse=True)
def shared_compile_cache() -> Iterator[None]:
    """An `LLM` sets that of the whole process, for tests that come later too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxengine.llm.llm.compile_cache_in", lambda _: shared_cache.COMPILED)
        yield


@pytest.fixture(scope="module")
def directory(tiny: Callable[[str], Path]) -> Path:
    return tiny("llama2_gqa")


@pytest.fixture(scope="module")
def llm(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    with pytest.MonkeyPatch.context() as patch, shared_executables():
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return LLM(directory, max_batch_size=4, max_batch_prefill_tokens=32, max_batch_total_tokens=512)

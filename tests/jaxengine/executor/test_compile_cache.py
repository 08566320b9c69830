"""Entries of JAX's cache that a full disk or a killed process has cut: JAX would warn of them at every later start."""

import os
import zlib
from pathlib import Path

import jax
import pytest

from jaxengine.executor.compile_cache import enable_compile_cache

WHOLE = zlib.compress(os.urandom(1000))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    before = jax.config.jax_compilation_cache_dir
    enable_compile_cache(tmp_path / "compiled")
    jax.config.update("jax_compilation_cache_dir", before)
    return tmp_path / "compiled"


def start(cache: Path) -> set[str]:
    """The entries that are left when another process starts."""
    before = jax.config.jax_compilation_cache_dir
    enable_compile_cache(cache)
    jax.config.update("jax_compilation_cache_dir", before)
    return {each.name for each in cache.glob("*-cache")}


def test_damaged_ones_go_at_the_next_start_and_whole_ones_stay(cache: Path) -> None:
    entries = {"whole": WHOLE, "cut": WHOLE[:-9], "empty": b"", "mixed": WHOLE[:99] + b"?" + WHOLE[100:]}
    for name, held in entries.items():
        (cache / f"jit_{name}-cache").write_bytes(held)
    (cache / "jit_of_zstandard-cache").write_bytes(b"\x28\xb5\x2f\xfd...")
    assert start(cache) == {"jit_whole-cache", "jit_of_zstandard-cache"}


def test_an_entry_is_looked_at_once(cache: Path) -> None:
    (cache / "jit_old-cache").write_bytes(b"")
    os.utime(cache / "jit_old-cache", ns=(0, 0))
    assert start(cache) == {"jit_old-cache"}

"""Fixtures of the converter's tests: checkpoints to be damaged, and a private cache."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def copy_of(tiny: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """`copy_of(name)` is a private copy of that checkpoint, to be damaged."""
    return lambda name: Path(shutil.copytree(tiny(name), tmp_path / name))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"

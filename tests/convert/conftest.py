"""Fixtures of the converter's tests: tiny checkpoints, written once per session, and a private cache."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.families.zoo import write_zoo
from tests.tiny import write_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny(name)` is the directory of that checkpoint; shared, so never written to."""
    root = tmp_path_factory.mktemp("tiny")
    return lambda name: root / name if (root / name).exists() else write_tiny(root, name)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`zoo(name)` is likewise the checkpoint of another family."""
    root = tmp_path_factory.mktemp("zoo")
    return lambda name: root / name if (root / name).exists() else write_zoo(root, name)


@pytest.fixture
def copy_of(tiny: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """`copy_of(name)` is a private copy of that checkpoint, to be damaged."""
    return lambda name: Path(shutil.copytree(tiny(name), tmp_path / name))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"

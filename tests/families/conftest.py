"""Fixtures of the families' tests: the zoo, written as it is asked for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.families.zoo import write_zoo


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`zoo(name)` is the directory of that checkpoint; shared, so never written to."""
    root = tmp_path_factory.mktemp("zoo")
    return lambda name: root / name if (root / name).exists() else write_zoo(root, name)

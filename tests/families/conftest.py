"""Fixtures of the families' tests: the zoo, written as it is asked for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.families.seq2seq import write_seq2seq
from tests.families.zoo import write_zoo


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`zoo(name)` is the directory of that checkpoint; shared, so never written to."""
    root = tmp_path_factory.mktemp("zoo")
    return lambda name: root / name if (root / name).exists() else write_zoo(root, name)


@pytest.fixture(scope="session")
def seq2seq(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The same of models with an encoder."""
    root = tmp_path_factory.mktemp("seq2seq")
    return lambda name: root / name if (root / name).exists() else write_seq2seq(root, name)

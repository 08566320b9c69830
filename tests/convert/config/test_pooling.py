"""What sentence-transformers' files say of pooling: its older flags, its newer names, and what is not served."""

import json
from pathlib import Path
from typing import Any

import pytest

from convert.config.pooling import pooling_of
from convert.errors import CheckpointError

NAME = "sentence_transformers.models."
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": f"{NAME}Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{NAME}Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{NAME}Normalize"},
]
OLD = {f"pooling_mode_{mode}": False for mode in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")}


def write(directory: Path, modules: Any = MODULES, **settings: Any) -> Path:
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **settings}))
    (directory / "modules.json").write_text(json.dumps(modules))
    return directory


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        ({**OLD, "pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
        ({**OLD, "pooling_mode_mean_tokens": True, "include_prompt": True}, "mean"),
        ({**OLD, "pooling_mode_cls_token": True}, "cls_token"),
        ({**OLD, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "mean+max_tokens"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
    ],
)
def test_the_mode_is_read(tmp_path: Path, settings: dict[str, Any], pooling: str) -> None:
    assert pooling_of(write(tmp_path, **settings)) == pooling


def test_a_checkpoint_that_says_nothing_pools_the_last_token(tmp_path: Path) -> None:
    assert pooling_of(tmp_path) == "last"


def test_a_module_that_changes_vectors_is_named(tmp_path: Path) -> None:
    dense = {"idx": 3, "name": "3", "path": "3_Dense", "type": f"{NAME}Dense"}
    assert pooling_of(write(tmp_path, [*MODULES, dense], pooling_mode="mean")) == "Dense"


@pytest.mark.parametrize("modules", [{}, ["Pooling"], [{"path": "1_Pooling"}]])
def test_a_broken_list_of_modules_is_refused(tmp_path: Path, modules: Any) -> None:
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        pooling_of(write(tmp_path, modules, pooling_mode="mean"))

"""A checkpoint's configuration, read as data: typed, bounded, with every failure naming file and key.

Nothing in it is executed or resolved to code. `auto_map` and keys that start with an underscore are dropped, except
for one by which OPT describes the model. Unknown keys are ignored.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from convert.errors import CheckpointError

KEPT = "_remove_final_layer_norm"
MAX_BYTES = 16 * 2**20


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises CheckpointError."""
    value = _parsed(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, got {type(value).__name__}")
    return value


def read_json_list(path: Path) -> list[Any]:
    """The JSON array in `path`. Raises CheckpointError."""
    value = _parsed(path)
    if not isinstance(value, list):
        raise CheckpointError(f"{path}: must hold a JSON array, got {type(value).__name__}")
    return value


def _parsed(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{path}: {path.stat().st_size} bytes, at most {MAX_BYTES}")
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error


class Config:
    """Typed access to a configuration object. `where` names it in errors.

    Args:
        text_alone: of a model that takes pictures or sound, the text part is wanted, and nothing else.
    """

    def __init__(self, values: dict[str, Any], where: str, *, text_alone: bool = False) -> None:
        self.text_alone = text_alone
        self.values = {key: value for key, value in values.items() if key == KEPT or not re.match("_|auto_map$", key)}
        self.where = where
        self.places: dict[str, str] = {}  # of sections that are not in `where` but in another file

    @classmethod
    def load(cls, path: Path) -> "Config":
        return cls(read_json(path), str(path))

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def spelled(self, *keys: str) -> str:
        """The first of `keys` that has a value; `keys[0]` where none has."""
        return next((key for key in keys if self.get(key) is not None), keys[0])

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self._present(key, default)
        if type(value) is not int or not least <= value < 2**31:
            raise self.error(key, "must be a positive integer" if least else "must be an integer, not negative")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
            raise self.error(key, "must be a finite number, not negative")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._present(key, default)
        if not isinstance(value, str):
            raise self.error(key, "must be a string")
        return value

    def section(self, key: str) -> "Config | None":
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, "must be an object")
        return Config(value, self.places.get(key, f"{self.where}: {key}"))

    def error(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {key} {problem}, got {str(self.get(key))[:100]!r}")

    def _present(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None and default is None:
            raise CheckpointError(f"{self.where}: {key} is missing")
        return default if value is None else value

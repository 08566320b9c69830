"""A checkpoint's configuration, read as data: typed, bounded, with every failure naming file and key.

Nothing in it is executed or resolved to code: `auto_map` and keys that start with an underscore are dropped, unknown
keys are ignored. Both spellings in use are read here and nowhere else: transformers 5 writes `rope_parameters` and
`dtype`, earlier ones `rope_theta`, `rope_scaling` and `torch_dtype`.
"""

import json
from pathlib import Path
from typing import Any

from convert.errors import CheckpointError
from jaxengine.model.spec import Rope, RopeKind

MAX_BYTES = 16 * 2**20
ROPE_KINDS: tuple[RopeKind, ...] = ("default", "linear", "dynamic", "llama3", "yarn")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{path}: {path.stat().st_size} bytes, at most {MAX_BYTES}")
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, got {type(value).__name__}")
    return value


class Config:
    """Typed access to a configuration object. `where` names it in errors."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = {key: value for key, value in values.items() if not key.startswith("_") and key != "auto_map"}
        self.where = where

    @classmethod
    def load(cls, path: Path) -> "Config":
        return cls(read_json(path), str(path))

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._present(key, default)
        if type(value) is not int or not 0 < value < 2**31:
            raise self.error(key, "must be a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
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
        return Config(value, f"{self.where}: {key}")

    def error(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {key} {problem}, got {str(self.get(key))[:100]!r}")

    def _present(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None and default is None:
            raise CheckpointError(f"{self.where}: {key} is missing")
        return default if value is None else value


def rope(config: Config, default_theta: float = 10000.0) -> Rope:
    """Rotary positions from either spelling. A legacy `rope_scaling` wins where both are there, as in transformers."""
    fields = config.section("rope_scaling") or config.section("rope_parameters") or Config({}, config.where)
    kind = fields.text("rope_type", fields.text("type", "default"))
    known = next((name for name in ROPE_KINDS if name == kind), None)
    if known is None:
        raise fields.error(
            "rope_type" if fields.get("rope_type") else "type", f"must be one of {', '.join(ROPE_KINDS)}"
        )
    if (fields.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1) != 1:
        raise CheckpointError(f"{config.where}: partial_rotary_factor other than 1 is not supported")
    theta = fields.number("rope_theta", config.number("rope_theta", default_theta))
    if theta == 0:
        raise config.error("rope_theta", "must be positive")
    if known == "default":
        return Rope(theta=theta)
    positions = config.integer("max_position_embeddings")
    trained = config.integer("original_max_position_embeddings", positions)
    original = positions if known == "dynamic" else fields.integer("original_max_position_embeddings", trained)
    factor = fields.number("factor", positions / original if known == "yarn" else None)
    if factor < 1:
        raise fields.error("factor", "must be at least 1")
    if known == "llama3":
        low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
        if not 0 < low < high:
            raise fields.error("low_freq_factor", f"must be positive and below high_freq_factor {high}")
        return Rope(known, theta, factor, original, low_freq_factor=low, high_freq_factor=high)
    if known == "yarn":
        return _yarn(fields, theta, factor, original)
    return Rope(known, theta, factor, original if known == "dynamic" else 0)


def _yarn(fields: Config, theta: float, factor: float, original: int) -> Rope:
    given = fields.get("attention_factor")
    return Rope(
        "yarn",
        theta,
        factor,
        original,
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        truncate=fields.flag("truncate", True),
        attention_factor=None if given is None else fields.number("attention_factor"),
        mscale=fields.number("mscale", 0.0),
        mscale_all_dim=fields.number("mscale_all_dim", 0.0),
    )


def longest(config: Config, rope: Rope) -> int:
    """Positions the model may use: what it was trained for, stretched where its rotary scaling says so.

    For linear scaling checkpoints disagree whether `max_position_embeddings` is the stretched length; those that mean
    the trained one say `max_sequence_length` too (Vicuna 16k).
    """
    positions = config.integer("max_position_embeddings")
    if rope.kind == "linear":
        return max(positions, config.integer("max_sequence_length", positions))
    if rope.kind in ("dynamic", "yarn"):
        return max(positions, int(rope.original_positions * rope.factor))
    return positions

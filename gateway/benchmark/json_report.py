"""The report as JSON, both ways: written after a measurement, and read to compare two."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from gateway.benchmark import plain_json
from gateway.benchmark.distribution import Distribution
from gateway.benchmark.report import FORMAT, Level, Load, Report
from jaxengine.options.option import UsageError


def written(report: Report) -> str:
    return json.dumps({"format": FORMAT, **dataclasses.asdict(report)}, indent=1, allow_nan=False) + "\n"


def read(path: Path) -> Report:
    """Raises UsageError naming the file."""
    try:
        fields = plain_json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("format") != FORMAT:
            raise UsageError(f"--compare {path} is of another version of this command")
        levels = [_level(each) for each in fields.pop("levels")]
        return Report(**fields, levels=levels)
    except OSError as error:
        raise UsageError(f"--compare {path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"--compare {path} is no JSON report of this command") from None


def _level(fields: dict[str, Any]) -> Level:
    load = Load(**fields.pop("load"))
    spread = {name: Distribution(**each) for name, each in fields.pop("spread").items()}
    return Level(load, **fields, spread=spread)

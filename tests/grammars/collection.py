"""Public JSON schemas, see `tests/goldens/schemas/README.md`, and what judges a document by one."""

import gzip
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for

from tests.processes import ROOT


@dataclass(frozen=True)
class Published:
    """A schema, where it is from and what it is called there."""

    source: str
    name: str
    schema: Any

    @property
    def validator(self) -> Validator:
        """Of the draft that the schema names, else of 2020-12. Formats are checked too."""
        draft = Draft202012Validator
        if isinstance(self.schema, dict):
            draft = validator_for(self.schema, default=draft)
        return draft(self.schema, format_checker=draft.FORMAT_CHECKER)


def published(source: str) -> list[Published]:
    return [each for each in _all() if each.source == source]


@cache
def _all() -> tuple[Published, ...]:
    with gzip.open(ROOT / "tests/goldens/schemas/schemas.jsonl.gz", "rt", encoding="utf-8") as lines:
        return tuple(Published(**json.loads(line)) for line in lines)

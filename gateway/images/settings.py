"""A checkpoint's settings about pictures: three JSON files, in the spellings of today's hub and of older ones.

Where transformers has two places for a setting, the order is transformers': an "image_processor" inside
processor_config.json comes before preprocessor_config.json.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.text.model_files import read_json


class UnusableProcessor(ValueError):
    """The checkpoint's settings about pictures are missing, or are none that are served. The message names the file."""


@dataclass(frozen=True)
class Settings:
    """The files of one checkpoint.

    Fields:
        model: config.json.
        image: of the image processor; empty if there is no file, and the class's defaults count.
        processor: processor_config.json, what words a prompt.
        tokenizer: tokenizer_config.json.
    """

    model: Mapping[str, Any]
    image: Mapping[str, Any]
    processor: Mapping[str, Any]
    tokenizer: Mapping[str, Any]

    @classmethod
    def read(cls, directory: Path) -> "Settings":
        """Raises ValueError, naming the file that cannot be read."""
        processor = read_json(directory / "processor_config.json")
        nested = processor.get("image_processor")
        image = nested if isinstance(nested, dict) else read_json(directory / "preprocessor_config.json")
        return cls(
            read_json(directory / "config.json"), image, processor, read_json(directory / "tokenizer_config.json")
        )

    @property
    def vision(self) -> Mapping[str, Any]:
        """The tower's part of config.json."""
        part = self.model.get("vision_config") or {}
        if not isinstance(part, Mapping):
            raise UnusableProcessor(f"config.json: vision_config must be an object, not {part!r}")
        return part

    @property
    def model_type(self) -> str:
        return str(self.model.get("model_type", ""))

    def token(self, *names: str, default: int) -> int:
        """An id that config.json has under one of `names`."""
        found = (self.model.get(name) for name in names)
        return int(next((each for each in found if each is not None), default))

    def spelling(self, name: str, default: str) -> str:
        """How a token of that `name` is spelled, e.g. "image_token"."""
        places = (self.processor, self.tokenizer, self.tokenizer.get("extra_special_tokens"))
        for place in places:
            value = place.get(name) if isinstance(place, Mapping) else None
            if isinstance(value, Mapping):
                value = value.get("content")
            if isinstance(value, str):
                return value
        return default

    @property
    def canonical(self) -> bytes:
        """All that says what becomes of a picture's pixels, as bytes: for digests."""
        return json.dumps([self.image, self.processor, self.model], sort_keys=True).encode()


def size_of(value: Any, *, square: bool, name: str = "size") -> dict[str, int]:
    """A size as the hub spells it today; older files have a number, or a list of height and width.

    `square` says whether a number is both edges or the shortest one.
    Source: transformers' `get_size_dict`.

    Raises:
        UnusableProcessor: it is none of these; `name` is the setting's.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return {"height": value, "width": value} if square else {"shortest_edge": value}
    if isinstance(value, list) and len(value) == 2:
        value = {"height": value[0], "width": value[1]}
    if not isinstance(value, Mapping) or not value:
        raise UnusableProcessor(f"preprocessor_config.json: {name} must be a size, not {value!r}")
    found = {key: each for key, each in value.items() if each is not None}
    if not all(isinstance(each, int) and each > 0 for each in found.values()):
        raise UnusableProcessor(f"preprocessor_config.json: {name} must have positive whole numbers, not {value!r}")
    return found

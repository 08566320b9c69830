"""Directories of tiny models that see, without weights: what a gateway reads of a checkpoint."""

import functools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers

from tests.tiny_vision import SEEN
from tests.tiny_vision_prompts import write_prompt_files


@functools.cache
def _parent() -> tempfile.TemporaryDirectory[str]:
    """Of all directories of this process; removed at its end."""
    return tempfile.TemporaryDirectory(prefix="models-that-see-")


@functools.cache
def directory(name: str) -> Path:
    """The recipe `name` of `tests.tiny_vision`: configuration, tokenizer, chat template and processor files."""
    target = Path(_parent().name) / name
    target.mkdir()
    fields = json.loads(json.dumps(SEEN[name]))
    transformers.AutoConfig.for_model(**fields).save_pretrained(target)
    write_prompt_files(target, name)
    return target


def changed(name: str, target: Path, files: Mapping[str, Mapping[str, Any]]) -> Path:
    """The same in `target`, with other values in its JSON files; None removes a key.

    "" is the vision_config of config.json.
    """
    for path in directory(name).iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    for file, values in files.items():
        path = target / (file or "config.json")
        content = json.loads(path.read_text()) if path.is_file() else {}
        part = content if file else content["vision_config"]
        part.update(values)
        for key in [key for key, value in part.items() if value is None]:
            del part[key]
        path.write_text(json.dumps(content))
    return target

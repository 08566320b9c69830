"""Directories of tiny models that see, without weights: what a gateway reads of a checkpoint."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import transformers

from tests.tiny_vision import SEEN
from tests.tiny_vision_prompts import write_prompt_files


@functools.cache
def directory(name: str) -> Path:
    """The recipe `name` of `tests.tiny_vision`: configuration, tokenizer, chat template and processor files."""
    target = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    fields = json.loads(json.dumps(SEEN[name]))
    transformers.AutoConfig.for_model(**fields).save_pretrained(target)
    write_prompt_files(target, name)
    return target


def changed(name: str, target: Path, file: str, **values: Any) -> Path:
    """The same in `target`, with other values in one of its JSON files; None removes a key."""
    for path in directory(name).iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    path = target / file
    old = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({key: value for key, value in {**old, **values}.items() if value is not None}))
    return target

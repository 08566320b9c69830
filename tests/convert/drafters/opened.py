"""Drafters in a directory, to be damaged and opened for a model of 64 numbers a hidden state and 320 tokens."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from convert.drafters.drafter import open_drafter
from convert.drafters.stored_drafter import StoredDrafter
from jaxengine.architecture.drafter import DRAFTER
from jaxengine.architecture.model import ModelSpec

HIDDEN, VOCAB = 64, 320
MODEL = ModelSpec(VOCAB, HIDDEN, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, ffn_size=96, max_positions=128)


def opened(directory: Path, model: ModelSpec = MODEL) -> StoredDrafter:
    return open_drafter(directory, model)


def read(drafter: StoredDrafter, name: str) -> np.ndarray:
    return drafter.read(f"{DRAFTER}{name}", ())


def change(directory: Path, **settings: Any) -> None:
    """None removes a setting."""
    path = directory / "config.json"
    changed = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({key: value for key, value in changed.items() if value is not None}))


def change_tensors(file: Path, changed: Callable[[dict[str, Any]], Any]) -> None:
    tensors = load_file(file)
    changed(tensors)
    save_file(tensors, file)

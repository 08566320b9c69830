"""llama.cpp's samplers, asked in an environment of their own."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.clients.environments import run_script


class Answer(NamedTuple):
    logits: np.ndarray  # f32 [N, V], -inf where an id was dropped
    chosen: np.ndarray  # i32 [N], -1 where a chain draws none


def llama_cpp(
    folder: Path,
    logits: np.ndarray,
    chains: Sequence[Sequence[tuple[Any, ...]]],
    history: Sequence[Sequence[int]] = (),
    steps: int = 1,
) -> Answer:
    """Each chain's answers to its `steps` rows of `logits` [N, V], after its ids of `history`."""
    longest = max(map(len, history), default=0)
    ids = np.full((len(chains), longest), -1, np.int32)
    for row, known in zip(ids, history, strict=False):
        row[: len(known)] = known
    given, answer = folder / "given.npz", folder / "answer.npz"
    np.savez(given, logits=logits, history=ids, chains=np.array(json.dumps(chains)), steps=np.array(steps))
    run_script("llama_cpp", "llama_cpp_samplers", given=str(given), answer=str(answer))
    with np.load(answer) as found:
        return Answer(found["logits"], found["chosen"])

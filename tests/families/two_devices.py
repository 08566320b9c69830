"""One model of every family over two devices, with other sizes than in the zoo.

`python -m tests.families.two_devices DIRECTORY` prints a JSON object: for each model, how far its logits are from the
reference's, and how far those are from each other. It is a program of its own, because the number of a CPU's devices is
fixed when JAX starts.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from convert.compose import compose
from convert.config.config import Config
from convert.formats.shards import open_tensors
from tests.families.forward import Forward
from tests.families.references import zoo_logits
from tests.families.zoo import BAICHUAN, SANTACODER, ZOO, write_zoo
from tests.jaxengine.engines import prompt
from tests.tiny import write_model

LENGTH = 40
OTHERS: dict[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), 3),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim"), 112),
    **dict.fromkeys(("sliding_window", "window_size"), 11),
    "num_key_value_heads": 4,
    "head_dim": 32,
}
EVEN = {"galactica": {"num_attention_heads": 4}, "gemma": {"num_key_value_heads": 2}, "gpt_neo": {"num_layers": 2}}
EVEN |= {"helium": {"head_dim": 16}, "gemma4_text": {"num_hidden_layers": 5}, "gemma4_moe": {"num_hidden_layers": 5}}
EVEN |= {"gemma4_e2b": {"num_hidden_layers": 8, "num_key_value_heads": 1}}
EVEN |= {"qwen3_5": {"num_hidden_layers": 4}}
FURTHER = ("gemma4_e2b", "gemma4_moe")  # of a model_type whose first checkpoint shows less than half of it


def families() -> dict[str, str]:
    """The first checkpoint of each model_type of the zoo, some more, and what transformers lacks."""
    first = {fields["model_type"]: name for name, fields in reversed(ZOO.items())}
    return first | {name: name for name in (*FURTHER, *BAICHUAN, SANTACODER)}


def write(directory: Path, name: str) -> Path:
    if name not in ZOO:
        return write_zoo(directory, name)
    fields = ZOO[name]
    changed: dict[str, Any] = {key: value for key, value in OTHERS.items() if isinstance(fields.get(key), int)}
    return write_model(directory / name, {**fields, **changed, **EVEN.get(name, {})}, seed=7)


def difference(directory: Path, name: str) -> tuple[float, float]:
    target, ids = write(directory, name), prompt(LENGTH, seed=7)
    source = compose(Config.load(target / "config.json"), open_tensors(target))
    model = Forward(source, slots=1, devices=2)
    ours, theirs = model.prefill(0, ids, 0, LENGTH), zoo_logits(target, ids)
    jax.clear_caches()  # a graph for each family is more than they need together
    return float(np.abs(ours - theirs).max()), float(np.ptp(theirs, axis=1).min())


if __name__ == "__main__":
    print(json.dumps({name: difference(Path(sys.argv[1]), name) for name in families().values()}))

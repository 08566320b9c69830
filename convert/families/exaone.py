"""EXAONE 4: norms behind each branch and of each head's queries and keys.

Where some layers have a window, the others see everything and know no positions.
"""

from dataclasses import replace

from convert.config.config import Config
from convert.families.family import layer_kinds, window
from convert.families.llama import llama_spec
from convert.families.olmo import OLMO2
from jaxengine.architecture.model import Attention, LayerKind, ModelSpec, QKNorm

WINDOW, PATTERN = 4096, 4  # each fourth layer sees everything


def _exaone4(config: Config) -> ModelSpec:
    spec = llama_spec(config, eps=1e-5, block="branch_norm", attention=Attention(qk_norm=QKNorm("rms")))
    if config.values.get("sliding_window", WINDOW) is None:
        return spec
    narrow = replace(spec.kinds[0], window=window(config, spec.max_positions, WINDOW))
    pattern = _pattern(config)
    kinds = layer_kinds(config, spec.num_layers, LayerKind(rope=None), narrow, lambda layer: (layer + 1) % pattern != 0)
    return replace(spec, kinds=kinds)


def _pattern(config: Config) -> int:
    """Every how many layers one sees everything: a number, or letters such as LLLG."""
    key = "sliding_window_pattern"
    if not isinstance(config.get(key), str):
        return config.integer(key, PATTERN)
    letters = config.text(key)
    if letters != "L" * (len(letters) - 1) + "G":
        raise config.error(key, "must be a number, or letters L and one G behind them")
    return len(letters)


EXAONE4 = replace(OLMO2, spec=_exaone4)

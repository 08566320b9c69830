"""GPT-Neo: GPT-2 with unscaled scores, and a sliding window in every other layer."""

from dataclasses import replace
from typing import Any

from convert.config.config import Config
from convert.families.family import Family, window
from convert.families.gpt2 import TENSORS, gpt_spec
from jaxengine.architecture.model import LayerKind, ModelSpec

LAYER = "transformer.h.{i}."
GPT_NEO_TENSORS = {
    **TENSORS,
    "layers.{i}.qkv": tuple(f"{LAYER}attn.attention.{x}_proj.weight" for x in "qkv"),
    "layers.{i}.out": (LAYER + "attn.attention.out_proj.weight",),
}
GLOBAL, LOCAL = "global", "local"


def _gpt_neo(config: Config) -> ModelSpec:
    spec = gpt_spec(config, positions=2048)
    full = LayerKind(rope=None, scale=1.0)
    local = replace(full, window=window(config, spec.max_positions, 256, key="window_size"))
    kinds = {GLOBAL: full, LOCAL: local}
    return replace(spec, kinds=tuple(kinds[name] for name in _layers(config, spec.num_layers)))


def _layers(config: Config, count: int) -> list[str]:
    """The kind of each layer: a list of them, or [[kinds in turn, how often], …]."""
    names = config.get("attention_layers")
    if names is None:
        names = _in_turn(config, config.get("attention_types") or [[[GLOBAL, LOCAL], count]], count)
    if not isinstance(names, list) or len(names) != count or not all(each in (GLOBAL, LOCAL) for each in names):
        raise config.error("attention_layers", f"must name {GLOBAL} or {LOCAL} for each of {count} layers")
    return names


def _in_turn(config: Config, types: Any, count: int) -> list[Any]:
    """The first `count` of what `types` lists."""
    names: list[Any] = []
    try:
        for turn, times in types:
            names += (list(turn) * min(times, count))[: count - len(names)]
    except (TypeError, ValueError) as error:
        raise config.error("attention_types", "must be a list of [kinds, times]") from error
    return names


GPT_NEO = Family(_gpt_neo, GPT_NEO_TENSORS, ignore=(r"\.attention\.(masked_)?bias$",))

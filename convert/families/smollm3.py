"""SmolLM3: a Llama, each fourth layer of which knows no positions (Yang et al. 2025, arXiv 2501.18795)."""

from dataclasses import replace

from convert.config.config import Config
from convert.families.family import Family, layer_kinds, window
from convert.families.llama import BUFFERS, TENSORS, llama_spec
from jaxengine.architecture.model import ModelSpec

INTERVAL = 4


def _smollm3(config: Config) -> ModelSpec:
    spec = llama_spec(config, theta=2e6, tied=True)
    rotated, slides = _rotated(config, spec.num_layers), config.flag("use_sliding_window", False)
    full, narrow = spec.kinds[0], replace(spec.kinds[0], window=window(config, spec.max_positions))
    kinds = layer_kinds(config, spec.num_layers, full, narrow, lambda layer: slides and not rotated[layer])
    seen = replace(spec, kinds=kinds)
    ropes = (full.rope if rotates else None for rotates in rotated)
    return replace(seen, kinds=tuple(replace(seen.kind(layer), rope=rope) for layer, rope in enumerate(ropes)))


def _rotated(config: Config, count: int) -> list[bool]:
    """Whether each layer knows positions. A list, of 1 or 0 for each layer, may be longer than there are layers."""
    layers = config.get("no_rope_layers")
    if layers is None:
        interval = config.integer("no_rope_layer_interval", INTERVAL)
        return [(layer + 1) % interval != 0 for layer in range(count)]
    if not isinstance(layers, list) or len(layers) < count or not all(each in (0, 1) for each in layers):
        raise config.error("no_rope_layers", f"must be a list of 1 or 0 for each of {count} layers")
    return [each == 1 for each in layers[:count]]


SMOLLM3 = Family(_smollm3, TENSORS, ignore=BUFFERS)

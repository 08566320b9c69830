"""Qwen 2 and 2.5, whose upper layers may slide; Qwen 3 normalises each head's queries and keys."""

from dataclasses import replace

from convert.config import Config
from convert.families.family import Family, layer_kinds, window
from convert.families.llama import BUFFERS, QK_NORM, TENSORS, llama_spec
from jaxengine.model.spec import Attention, ModelSpec, QKNorm

MAX_WINDOW_LAYERS = 28  # the configurations' default


def sliding(spec: ModelSpec, config: Config) -> ModelSpec:
    """`spec` with windows on layers from `max_window_layers` on, where the configuration uses them at all."""
    if not config.flag("use_sliding_window", False):
        return spec
    first = config.integer("max_window_layers", MAX_WINDOW_LAYERS, least=0)
    full, narrow = spec.kinds[0], replace(spec.kinds[0], window=window(config, spec.max_positions, 4096))
    return replace(spec, kinds=layer_kinds(config, spec.num_layers, full, narrow, lambda layer: layer >= first))


def _qwen2(config: Config) -> ModelSpec:
    return sliding(llama_spec(config), config)


def _qwen3(config: Config) -> ModelSpec:
    return sliding(llama_spec(config, head_dim=128, attention=Attention(qk_norm=QKNorm("rms"))), config)


QWEN2 = Family(_qwen2, TENSORS, ignore=BUFFERS)
QWEN3 = Family(_qwen3, {**TENSORS, "layers.{i}.qk_norm": QK_NORM}, ignore=BUFFERS)

"""The text part of Llama 3.2 Vision: Llama 3 with layers between its own that attend to pictures."""

from dataclasses import replace

from convert.config.config import Config
from convert.families.family import Family
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Cross, LayerKind, ModelSpec

MORE_IDS = 8  # rows of the embedding behind those of the tokens, for what is never sampled: the first is the picture's
CROSS = {
    "layers.{i}.cross_q": (LAYER + "cross_attn.q_proj.weight",),
    "layers.{i}.cross_q_norm": (LAYER + "cross_attn.q_norm.weight",),
    "layers.{i}.cross_kv": (LAYER + "cross_attn.k_proj.weight", LAYER + "cross_attn.v_proj.weight"),
    "layers.{i}.cross_k_norm": (LAYER + "cross_attn.k_norm.weight",),
    "layers.{i}.cross_out": (LAYER + "cross_attn.o_proj.weight",),
    "layers.{i}.attention_gate": (LAYER + "cross_attn_attn_gate",),
    "layers.{i}.mlp_gate": (LAYER + "cross_attn_mlp_gate",),
}


def _spec(config: Config) -> ModelSpec:
    spec = llama_spec(config, theta=500000.0, eps=1e-5)
    layers = config.get("cross_attention_layers")
    known = isinstance(layers, list) and all(type(each) is int and 0 <= each < spec.num_layers for each in layers)
    if not known or not 0 < len({*layers}) < spec.num_layers:
        raise config.error("cross_attention_layers", f"must be some, and not all, of {spec.num_layers} layers")
    own, cross = spec.kinds[0], LayerKind(None, cross=Cross(), gates="number")
    tokens = spec.vocab_size
    return replace(
        spec,
        vocab_size=tokens + MORE_IDS,
        kinds=tuple(cross if layer in layers else own for layer in range(spec.num_layers)),
        head=replace(spec.head, tied=False, tokens=tokens),
    )


MLLAMA = Family(_spec, {**TENSORS, **CROSS}, Layout(short_head=True), ignore=BUFFERS)

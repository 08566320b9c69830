"""GPT-2, and models with its tensor names: StarCoder's GPT-BigCode, and SantaCoder as it was first published.

All have learned positions. GPT-2 and SantaCoder store matrices `[in, out]`; the code models share one key/value head.
"""

from dataclasses import replace
from typing import Any

from convert.config.config import Config
from convert.families.family import Family, activation, refuse, sizes
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Embedding, Head, LayerKind, ModelSpec, Norm

LAYER = "transformer.h.{i}."
TENSORS = {
    "embedding": ("transformer.wte.weight",),
    "positions": ("transformer.wpe.weight",),
    "layers.{i}.attention_norm": (LAYER + "ln_1.weight",),
    "layers.{i}.qkv": (LAYER + "attn.c_attn.weight",),
    "layers.{i}.out": (LAYER + "attn.c_proj.weight",),
    "layers.{i}.mlp_norm": (LAYER + "ln_2.weight",),
    "layers.{i}.gate_up": (LAYER + "mlp.c_fc.weight",),
    "layers.{i}.down": (LAYER + "mlp.c_proj.weight",),
    "final_norm": ("transformer.ln_f.weight",),
    "head": ("lm_head.weight",),
}
SANTACODER_TENSORS = {**TENSORS, "layers.{i}.qkv": (LAYER + "attn.q_attn.weight", LAYER + "attn.kv_attn.weight")}
BUFFERS = (r"\.attn\.(masked_)?bias$",)


def gpt_spec(config: Config, *, positions: int, kv_heads: int = 0, act: str = "gelu_new", **switches: Any) -> ModelSpec:
    """LayerNorm, a plain MLP and learned positions, with other `switches` of `ModelSpec`.

    Args:
        positions, act: defaults where the configuration is silent.
        kv_heads: how many key/value heads; 0 means as many as query heads.
    """
    refuse(config, add_cross_attention=False)
    fields = sizes(config, positions=positions)
    ready = {
        "num_kv_heads": kv_heads or fields["num_heads"],
        "norm": Norm("layer", config.number("layer_norm_epsilon", 1e-5)),
        "kinds": (LayerKind(rope=None),),
        "activation": activation(config, act),
        "gated": False,
        "embedding": Embedding(positions=True),
        "head": Head(tied=config.flag("tie_word_embeddings", True)),
    }
    return ModelSpec(**{**fields, **ready, **switches})


def _scaled(spec: ModelSpec, config: Config) -> ModelSpec:
    """`spec` with scores scaled as the configuration says: as usual, not at all, or by layer."""
    scale = spec.head_dim**-0.5 if config.flag("scale_attn_weights", True) else 1.0
    by_layer = config.flag("scale_attn_by_inverse_layer_idx", False)
    scales = [scale / (i + 1) for i in range(spec.num_layers)] if by_layer else [scale]
    return replace(spec, kinds=tuple(LayerKind(rope=None, scale=each) for each in scales))


def _gpt2(config: Config) -> ModelSpec:
    return _scaled(gpt_spec(config, positions=1024), config)


def _santacoder(config: Config) -> ModelSpec:
    return _scaled(gpt_spec(config, positions=2048, kv_heads=1), config)


def _gpt_bigcode(config: Config) -> ModelSpec:
    refuse(config, scale_attn_by_inverse_layer_idx=False)
    heads = 1 if config.flag("multi_query", True) else 0
    return _scaled(gpt_spec(config, positions=1024, kv_heads=heads, act="gelu_pytorch_tanh"), config)


def gpt2(config: Config) -> Family:
    """The family of the model_type `gpt2`, which SantaCoder's first configuration has too."""
    if config.get("attention_head_type") == "multiquery":
        return Family(_santacoder, SANTACODER_TENSORS, Layout(transposed=True), ignore=BUFFERS)
    return Family(_gpt2, TENSORS, Layout(transposed=True), ignore=BUFFERS)


GPT_BIGCODE = Family(_gpt_bigcode, TENSORS, Layout(qkv="grouped"), ignore=BUFFERS)

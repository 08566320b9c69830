"""DeepSeek V2, V3 and R1, and models of their shape: Kimi K2, GLM 4.7 Flash, A.X K1, Youtu, MiniCPM 3. Keys and values
are made of latents (DeepSeek-AI 2024, arXiv 2405.04434), and most have experts behind a few layers without.

Norms of latents have an epsilon of their own, whatever the configuration says of the others. DeepSeek V2 judges a group
of experts by the best score in it, and does not divide the weights of the chosen by their sum.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from convert.config.config import Config
from convert.families.family import Family, refuse, with_experts
from convert.families.glm import DEEPSEEK_EXPERTS, deepseek_experts
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec
from convert.mapping.recipes import Layout
from jaxengine.architecture.latent import Latent
from jaxengine.architecture.model import Attention, Embedding, Experts, ModelSpec, Rope

OTHERS = ("layers.{i}.qkv", "layers.{i}.qk_norm")  # of models without latents
ATTENTION = {
    "q_a": "q_a_proj",
    "q_a_norm": "q_a_layernorm",
    "q": "q_b_proj",
    "kv_a": "kv_a_proj_with_mqa",
    "kv_a_norm": "kv_a_layernorm",
    "k_up": "kv_b_proj",
    "v_up": "kv_b_proj",
}
DEEPSEEK = {name: theirs for name, theirs in (TENSORS | DEEPSEEK_EXPERTS).items() if name not in OTHERS}
DEEPSEEK |= {f"layers.{{i}}.{name}": (f"{LAYER}self_attn.{theirs}.weight",) for name, theirs in ATTENTION.items()}
DEEPSEEK |= {"layers.{i}.experts_norm": (LAYER + "post_mlp_layernorm.weight",)}
NO_QUERY_LATENT = {"layers.{i}.q": (LAYER + "self_attn.q_proj.weight",)}

# What counts where a configuration is silent.
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "q_lora_rank": 1536}
FLASH_LATENT = LATENT | {"qk_nope_head_dim": 192, "v_head_dim": 256, "q_lora_rank": 768}
MINICPM_LATENT = {"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "q_lora_rank": 768}
V2 = {"n_routed_experts": 64, "moe_intermediate_size": 1407, "n_shared_experts": 2, "norm_topk_prob": False}
V3 = {"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "routed_scaling_factor": 2.5}
V3 |= {"n_group": 8, "topk_group": 4}
FLASH = {"n_routed_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536, "routed_scaling_factor": 1.8}
AXK1 = {**V3, "n_routed_experts": 192}


def _latent_spec(config: Config, silent: dict[str, int], **given: Any) -> ModelSpec:
    """A Llama with latent attention. Sizes of `silent` count where the configuration is so; `given` is for
    `llama_spec`.
    """

    def size(key: str) -> int:
        return config.integer(key, silent[key])

    latent = Latent(
        rank=size("kv_lora_rank"),
        plain_dim=size("qk_nope_head_dim"),
        rope_dim=size("qk_rope_head_dim"),
        value_dim=size("v_head_dim"),
        query_rank=0 if _is_null(config, "q_lora_rank") else size("q_lora_rank"),
    )
    heads = {"head_dim": latent.rope_dim, "num_key_value_heads": 1}  # what turns is the whole of such a head
    spec = llama_spec(Config({**config.values, **heads}, config.where), **given)
    (kind,) = spec.kinds
    assert kind.rope is not None
    scale = latent.head_dim**-0.5 * _sharper(kind.rope) ** 2
    kinds = (replace(kind, rope=replace(kind.rope, dim=latent.rope_dim), scale=scale),)
    return replace(spec, head_dim=latent.head_dim, attention=Attention(latent=latent), kinds=kinds)


def _is_null(config: Config, key: str) -> bool:
    """Which is not the same as silence."""
    return key in config.values and config.get(key) is None


def _sharper(rope: Rope) -> float:
    """By what the scaling of positions multiplies queries and keys each (Peng et al. 2023, arXiv 2309.00071)."""
    if rope.kind != "yarn" or not rope.mscale_all_dim:
        return 1.0
    return 0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1


def _with_experts(spec: ModelSpec, config: Config, experts: Experts, dense: int) -> ModelSpec:
    """`spec` with `experts`, but in its `dense` first layers, or those that the configuration calls so."""
    refuse(config, moe_layer_freq=1)
    first = config.integer("first_k_dense_replace", dense, least=0)
    types = config.get("mlp_layer_types")
    if types is None:
        return with_experts(spec, experts, lambda layer: layer >= first)
    if not isinstance(types, list) or len(types) != spec.num_layers or not set(types) <= {"dense", "sparse"}:
        raise config.error("mlp_layer_types", f"must name dense or sparse for each of {spec.num_layers} layers")
    return with_experts(spec, experts, lambda layer: types[layer] == "sparse")


def _v2(config: Config) -> ModelSpec:
    refuse(config, scoring_func="softmax", norm_topk_prob=False)
    method = config.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise config.error("topk_method", "must be greedy or group_limited_greedy")
    experts = replace(deepseek_experts(config, **V2), routing="softmax", choice_bias=False, judges=1)
    if method == "greedy":
        experts = replace(experts, groups=1, used_groups=1)
    return _with_experts(_latent_spec(config, LATENT), config, experts, dense=0)


def _v3(config: Config) -> ModelSpec:
    refuse(config, scoring_func="sigmoid", topk_method="noaux_tc")
    return _with_experts(_latent_spec(config, LATENT), config, deepseek_experts(config, **V3), dense=3)


def _flash(config: Config) -> ModelSpec:
    refuse(config, scoring_func="sigmoid", topk_method="noaux_tc")
    spec = _latent_spec(config, FLASH_LATENT, eps=1e-5)
    return _with_experts(spec, config, deepseek_experts(config, **FLASH), dense=1)


def _axk1(config: Config) -> ModelSpec:
    refuse(config, scoring_func="sigmoid", topk_method="noaux_tc")
    experts = replace(deepseek_experts(config, **AXK1), norm=True)
    return _with_experts(_latent_spec(config, LATENT), config, experts, dense=1)


def _youtu(config: Config) -> ModelSpec:
    return _latent_spec(config, LATENT, tied=True)


def _minicpm3(config: Config) -> ModelSpec:
    """Embeddings, branches and logits are multiplied by a number each."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    value = hidden // config.integer("num_attention_heads")
    spec = _latent_spec(config, {**MINICPM_LATENT, "v_head_dim": value}, eps=1e-5, tied=True)
    depth = math.sqrt(layers) if _is_null(config, "scale_depth") else config.number("scale_depth", 1.4)
    base = hidden if _is_null(config, "dim_model_base") else config.integer("dim_model_base", 256)
    return replace(
        spec,
        embedding=Embedding(scale=config.number("scale_emb", 12.0)),
        residual_scale=depth / math.sqrt(layers),
        head=replace(spec.head, scale=base / hidden),
    )


def _family(
    spec: Callable[[Config], ModelSpec], interleaved: bool | None = None, **fields: Any
) -> Callable[[Config], Family]:
    """interleaved: whether rotary pairs lie side by side; None: as the configuration says."""

    def family(config: Config) -> Family:
        pairs = config.flag("rope_interleave", True) if interleaved is None else interleaved
        tensors = DEEPSEEK | NO_QUERY_LATENT if _is_null(config, "q_lora_rank") else DEEPSEEK
        return Family(spec, tensors, Layout(interleaved=pairs), ignore=BUFFERS, **fields)

    return family


deepseek_v2 = _family(_v2, interleaved=True)
deepseek_v3 = _family(_v3, drafting="num_nextn_predict_layers")
glm4_moe_lite = _family(_flash, drafting="num_nextn_predict_layers")
axk1 = _family(_axk1, renames=((r"\.mlp\.post_mlp_layernorm\.", ".post_mlp_layernorm."),))
youtu = _family(_youtu)
minicpm3 = _family(_minicpm3, interleaved=False)

"""LFM2: gated convolutions over a few tokens, and attention with norms of heads in some layers; with experts too."""

from dataclasses import replace

from convert.config.config import Config
from convert.config.rope import FULL
from convert.families.family import Family, with_experts
from convert.families.llama import BUFFERS, llama_spec
from jaxengine.architecture.model import Attention, Experts, LayerKind, ModelSpec, QKNorm, ShortConvolution
from jaxengine.architecture.model_checks import MAX_WIDTH

CONV = "conv"
LAYER = "model.layers.{i}."
FEED_FORWARD = LAYER + "feed_forward."
TENSORS = {
    "embedding": ("model.embed_tokens.weight",),
    "layers.{i}.attention_norm": (LAYER + "operator_norm.weight",),
    "layers.{i}.qkv": tuple(f"{LAYER}self_attn.{x}_proj.weight" for x in "qkv"),
    "layers.{i}.qk_norm": tuple(f"{LAYER}self_attn.{x}_layernorm.weight" for x in "qk"),
    "layers.{i}.out": (LAYER + "self_attn.out_proj.weight",),
    "layers.{i}.short_in": (LAYER + "conv.in_proj.weight",),
    "layers.{i}.short_conv": (LAYER + "conv.conv.weight",),
    "layers.{i}.short_out": (LAYER + "conv.out_proj.weight",),
    "layers.{i}.mlp_norm": (LAYER + "ffn_norm.weight",),
    "layers.{i}.gate_up": (FEED_FORWARD + "w1.weight", FEED_FORWARD + "w3.weight"),
    "layers.{i}.down": (FEED_FORWARD + "w2.weight",),
    "final_norm": ("model.embedding_norm.weight",),
    "head": ("lm_head.weight",),
}
EXPERTS = {
    **TENSORS,
    "layers.{i}.router": (FEED_FORWARD + "gate.weight",),
    "layers.{i}.router_choice_bias": (FEED_FORWARD + "expert_bias",),
    "layers.{i}.experts_gate_up": tuple(f"{FEED_FORWARD}experts.{{e}}.{x}.weight" for x in ("w1", "w3")),
    "layers.{i}.experts_down": (FEED_FORWARD + "experts.{e}.w2.weight",),
}


def _hybrid(config: Config) -> ModelSpec:
    config = Config({"rms_norm_eps": config.get("norm_eps"), **config.values}, config.where)
    tied = config.flag("tie_embedding", config.flag("tie_word_embeddings", True))
    spec = llama_spec(config, theta=1e6, eps=1e-5, attention=Attention(qk_norm=QKNorm()))
    spec = replace(spec, head=replace(spec.head, tied=tied))
    attends = _attending(config, spec.num_layers)
    if all(attends):
        return spec
    kernel, bias = config.integer("conv_L_cache", 3), config.flag("conv_bias", False)
    short = ShortConvolution(spec.hidden_size, kernel, bias)
    full, kept = spec.kinds[0], LayerKind(None, mixer="recurrence")
    return replace(spec, short_convolution=short, kinds=tuple(full if each else kept for each in attends))


def _attending(config: Config, count: int) -> list[bool]:
    """Of each layer, whether it has attention: as `layer_types` says, else those that `full_attn_idxs` numbers."""
    types, numbers = config.get("layer_types"), config.get("full_attn_idxs")
    if types is None:
        if numbers is not None and not isinstance(numbers, list):
            raise config.error("full_attn_idxs", "must be a list of layer numbers")
        return [numbers is None or layer in numbers for layer in range(count)]
    if not isinstance(types, list) or len(types) != count or not all(each in (FULL, CONV) for each in types):
        raise config.error("layer_types", f"must name {FULL} or {CONV} for each of {count} layers")
    return [each == FULL for each in types]


def _lfm2(config: Config) -> ModelSpec:
    spec = _hybrid(config)
    return replace(spec, ffn_size=_adjusted(config, config.integer("block_ff_dim", spec.ffn_size)))


def _adjusted(config: Config, width: int) -> int:
    """The MLP's width, of which configurations say what it was before it was made as large as without a gate."""
    if not config.flag("block_auto_adjust_ff_dim", True):
        return width
    multiple, factor = config.integer("block_multiple_of", 256), config.number("block_ffn_dim_multiplier", 1.0)
    width = int(2 * width / 3)
    if not 0 < factor * width <= MAX_WIDTH or multiple > MAX_WIDTH:
        raise config.error("block_ffn_dim_multiplier", f"makes an MLP of no width from 1 to {MAX_WIDTH}")
    return -(-int(factor * width) // multiple) * multiple


def _lfm2_moe(config: Config) -> ModelSpec:
    spec, dense = _hybrid(config), config.integer("num_dense_layers", 2, least=0)
    experts = Experts(
        count=config.integer("num_experts", 32),
        used=config.integer("num_experts_per_tok", 4),
        ffn_size=config.integer("moe_intermediate_size", 1792),
        routing="sigmoid",
        renormalise=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 1.0),
        choice_bias=config.flag("use_expert_bias", True),
    )
    return with_experts(spec, experts, lambda layer: layer >= dense)


LFM2 = Family(_lfm2, TENSORS, ignore=BUFFERS)
LFM2_MOE = Family(_lfm2_moe, EXPERTS, ignore=BUFFERS)

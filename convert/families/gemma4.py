"""Gemma 4 (text): sliding and global layers with heads of their own sizes.

As in Gemma 3, norms stand before and behind each branch, but they multiply by their weights alone, scores are not
scaled, and values are normalised too. Global layers have wider heads, fewer of them if `attention_k_eq_v`, and their
keys then are their values before norm and rotation: one matrix of the checkpoint is read as both, which takes 0.3 %
more memory in the 31B. The last `num_kv_shared_layers` attend to the keys and values of the last layer of their type
before them. The small models have rows for each token and layer beside the embedding; one has experts beside its MLPs.
"""

import math
from dataclasses import replace

from convert.config.config import Config
from convert.config.rope import FULL, SLIDING, rope
from convert.families.family import Family, activation_named, refuse, sizes, window
from convert.families.gemma import SANDWICH
from convert.families.llama import BUFFERS, LAYER, QK_NORM
from convert.mapping.recipes import Layout
from jaxengine.architecture.layer_groups import place_size
from jaxengine.architecture.model import Attention, Embedding, Experts, Head, LayerKind, ModelSpec, Norm, QKNorm, Rope

PATTERN = 6  # each sixth layer sees everything
GLOBAL_HEAD_DIM, GLOBAL_THETA, GLOBAL_PART = 512, 1e6, 0.25
OWN = r"\.layers\.{}\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\."
TENSORS = {
    **SANDWICH,
    "layer_embedding": ("model.embed_tokens_per_layer.weight",),
    "layer_projection": ("model.per_layer_model_projection.weight",),
    "layer_input_norm": ("model.per_layer_projection_norm.weight",),
    "layers.{i}.qk_norm": QK_NORM,
    "layers.{i}.q": (LAYER + "self_attn.q_proj.weight",),
    "layers.{i}.q_norm": (LAYER + "self_attn.q_norm.weight",),
    "layers.{i}.router": (LAYER + "router.proj.weight",),
    "layers.{i}.router_norm": (LAYER + "router.scale",),
    "layers.{i}.router_scale": (LAYER + "router.per_expert_scale",),
    "layers.{i}.experts_gate_up": (LAYER + "experts.gate_up_proj",),
    "layers.{i}.experts_down": (LAYER + "experts.down_proj",),
    "layers.{i}.mlp_inner_norm": (LAYER + "post_feedforward_layernorm_1.weight",),
    "layers.{i}.experts_norm": (LAYER + "pre_feedforward_layernorm_2.weight",),
    "layers.{i}.experts_post_norm": (LAYER + "post_feedforward_layernorm_2.weight",),
    "layers.{i}.input_gate": (LAYER + "per_layer_input_gate.weight",),
    "layers.{i}.input_out": (LAYER + "per_layer_projection.weight",),
    "layers.{i}.input_norm": (LAYER + "post_per_layer_input_norm.weight",),
    "layers.{i}.output_scale": (LAYER + "layer_scalar",),
}
KEYS_AS_VALUES = tuple(f"{LAYER}self_attn.{x}_proj.weight" for x in "qkk")
EXPERT = LAYER + "experts.{e}."
APART = {
    "layers.{i}.experts_gate_up": (EXPERT + "gate_proj.weight", EXPERT + "up_proj.weight"),
    "layers.{i}.experts_down": (EXPERT + "down_proj.weight",),
}


def gemma4(config: Config) -> Family:
    """The family as `config` has it: which layers read one matrix as keys and values, and which make neither."""
    types = _types(config)
    first = len(types) - _shared(config, len(types))
    tensors = dict(TENSORS)
    if config.flag("attention_k_eq_v", False):
        tensors |= {
            f"layers.{i}.qkv": tuple(name.format(i=i) for name in KEYS_AS_VALUES)
            for i, each in enumerate(types)
            if each == FULL
        }
    unread = tuple(OWN.format(i) for i in range(first, len(types)))  # of layers that read another's: never used
    layout = Layout(joint_experts="straight")
    return Family(_spec, tensors, layout, ignore=(*BUFFERS, *unread), apart=APART)


def _spec(config: Config) -> ModelSpec:
    refuse(config, use_bidirectional_attention="vision")  # of tokens of pictures, and of those alone
    types = _types(config)
    fields = sizes(config, head_dim=256)
    key = config.spelled("hidden_activation", "hidden_act")
    spec = ModelSpec(
        **fields,
        norm=Norm("rms", config.number("rms_norm_eps", 1e-6)),
        block="sandwich",
        kinds=_kinds(config, types, fields),
        attention=Attention(qk_norm=QKNorm("rms"), value_norm=True),
        activation=activation_named(config, key, config.text(key, "gelu_pytorch_tanh")),
        experts=_experts(config),
        embedding=Embedding(scale=math.sqrt(fields["hidden_size"]), layer_width=_layer_width(config)),
        head=Head(tied=config.flag("tie_word_embeddings", True), softcap=_softcap(config)),
        output_scale=True,
        qkv_bias=config.flag("attention_bias", False),
        out_bias=config.flag("attention_bias", False),
    )
    place_size(spec)  # raises where its layers have no common page
    return spec


def _kinds(config: Config, types: list[str], fields: dict[str, int]) -> tuple[LayerKind, ...]:
    """The kind of each layer."""
    kinds = {
        each: LayerKind(
            _rope(config, each, dim),
            window(config, fields["max_positions"], 512) if each == SLIDING else 0,
            kv_heads=0 if kv_heads == fields["num_kv_heads"] else kv_heads,
            head_dim=0 if dim == fields["head_dim"] else dim,
        )
        for each, (kv_heads, dim) in _heads(config, types, fields).items()
    }
    has_experts = config.flag("enable_moe_block", False)
    kinds = {name: replace(kind, scale=1.0, experts=has_experts) for name, kind in kinds.items()}
    shared = _shared(config, len(types))
    wide = 2 * fields["ffn_size"] if config.flag("use_double_wide_mlp", False) else 0
    own = types[: len(types) - shared]
    for each in set(types) - set(own):
        raise config.error("num_kv_shared_layers", f"leaves no layer of type {each} with keys of its own")
    last = {each: len(own) - 1 - own[::-1].index(each) for each in set(own)}
    reading = {each: replace(kinds[each], reads=source, ffn_size=wide) for each, source in last.items()}
    return (*(kinds[each] for each in own), *(reading[each] for each in types[len(own) :]))


def _heads(config: Config, types: list[str], fields: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Key/value heads and head_dim of the layers of each type: as the authors write them, or as transformers does."""
    plain = fields["num_kv_heads"], fields["head_dim"]
    by_layer = config.section("per_layer_config")
    if by_layer is None:
        fewer = config.flag("attention_k_eq_v", False) and config.get("num_global_key_value_heads") is not None
        kv_heads = config.integer("num_global_key_value_heads") if fewer else plain[0]
        return {SLIDING: plain, FULL: (kv_heads, config.integer("global_head_dim", GLOBAL_HEAD_DIM))}
    found: dict[str, tuple[int, int]] = {}
    keys = _by_number(by_layer)
    for layer, each in enumerate(types):
        own = by_layer.section(keys.get(layer, "")) or Config({}, by_layer.where)
        if unknown := set(own.values) - {"num_key_value_heads", "head_dim"}:
            raise own.error(min(unknown), "of single layers is not supported")
        heads = own.integer("num_key_value_heads", plain[0]), own.integer("head_dim", plain[1])
        if found.setdefault(each, heads) != heads:
            raise config.error("per_layer_config", f"must be the same for all layers of type {each}")
    return found


def _by_number(by_layer: Config) -> dict[int, str]:
    """The key of each layer that has one. transformers writes all with as many digits as the last: "05", "11"."""
    for key in by_layer.values:
        if not key.isdecimal():
            raise by_layer.error(key, "must be an object of a layer, by its number")
    return {int(key): key for key in by_layer.values}


def _types(config: Config) -> list[str]:
    """The type of each layer. The last one sees everything, as in transformers, whatever the configuration says."""
    count = config.integer("num_hidden_layers")
    types = config.get("layer_types")
    if types is None:
        types = [FULL if (layer + 1) % PATTERN == 0 else SLIDING for layer in range(count)]
    if not isinstance(types, list) or len(types) != count or not all(each in (FULL, SLIDING) for each in types):
        raise config.error("layer_types", f"must name {FULL} or {SLIDING} for each of {count} layers")
    return [*types[:-1], FULL]


def _shared(config: Config, layers: int) -> int:
    shared = config.integer("num_kv_shared_layers", 0, least=0)
    if shared >= layers:
        raise config.error("num_kv_shared_layers", f"must be less than num_hidden_layers {layers}")
    return shared


def _rope(config: Config, layers: str, head_dim: int) -> Rope:
    if config.section("rope_parameters") is not None:
        return rope(config, head_dim, layers=layers)
    if layers == SLIDING:
        return Rope()
    return Rope("proportional", GLOBAL_THETA, turning=int(GLOBAL_PART * head_dim // 2))


def _layer_width(config: Config) -> int:
    """Of the rows for each token and layer; 0 where there are none."""
    key = "hidden_size_per_layer_input"
    width = 0 if config.values.get(key, 256) is None else config.integer(key, 256, least=0)
    if width and config.integer("vocab_size_per_layer_input", 262144) != config.integer("vocab_size", 262144):
        raise config.error("vocab_size_per_layer_input", "other than vocab_size is not supported")
    return width


def _experts(config: Config) -> Experts | None:
    if not config.flag("enable_moe_block", False):
        return None
    return Experts(
        config.integer("num_experts"),
        config.integer("top_k_experts"),
        config.integer("moe_intermediate_size"),
        renormalise=True,
        learned_scale=True,
        beside=True,
    )


def _softcap(config: Config) -> float:
    return 0.0 if config.get("final_logit_softcapping") is None else config.number("final_logit_softcapping")

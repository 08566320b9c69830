"""OLMo hybrid: three of four layers have linear attention, with norms before their branches; the others OLMo 3's
attention, with norms behind.
"""

from dataclasses import replace

from convert.config.config import Config
from convert.families.family import Family, refuse
from convert.families.llama import BUFFERS, LAYER, QK_NORM, TENSORS, llama_spec
from convert.families.qwen_hybrid import attending
from jaxengine.architecture.model import Attention, LayerKind, LinearAttention, ModelSpec, QKNorm

MIXER = LAYER + "linear_attn."
NORM_EPS = 1e-5  # of what heads of linear attention make
HYBRID = {
    **TENSORS,
    "layers.{i}.qk_norm": QK_NORM,
    "layers.{i}.linear_in": tuple(f"{MIXER}{x}_proj.weight" for x in "qkv"),
    "layers.{i}.linear_gate": (MIXER + "g_proj.weight",),
    "layers.{i}.linear_rates": tuple(f"{MIXER}{x}_proj.weight" for x in "ba"),
    "layers.{i}.linear_conv": tuple(f"{MIXER}{x}_conv1d.weight" for x in "qkv"),
    "layers.{i}.linear_decay": (MIXER + "A_log",),
    "layers.{i}.linear_step": (MIXER + "dt_bias",),
    "layers.{i}.linear_norm": (MIXER + "o_norm.weight",),
    "layers.{i}.linear_out": (MIXER + "o_proj.weight",),
}
NORMS_BEHIND = {"attention_norm": "post_attention_layernorm.weight", "mlp_norm": "post_feedforward_layernorm.weight"}
RENAMES = (
    (r"\.attention_layer_norm\.", ".input_layernorm."),
    (r"\.feedforward_layer_norm\.", ".post_attention_layernorm."),
)


def _spec(config: Config) -> ModelSpec:
    refuse(config, hidden_act="silu")
    spec = llama_spec(config, attention=Attention(qk_norm=QKNorm(over="projection")))
    heads = config.integer("linear_num_key_heads", spec.num_heads)
    dim = config.integer("linear_key_head_dim", int(0.75 * spec.hidden_size / heads))
    linear = LinearAttention(
        heads=config.integer("linear_num_value_heads", spec.num_heads),
        key_heads=heads,
        key_dim=dim,
        value_dim=config.integer("linear_value_head_dim", 2 * dim),
        kernel=config.integer("linear_conv_kernel_dim", 4),
        most_rate=2.0 if config.flag("linear_allow_neg_eigval", True) else 1.0,
        eps=NORM_EPS,
    )
    full = replace(spec.kinds[0], block="branch_norm")
    if not _rotates(config):
        full = replace(full, rope=None)
    kept = LayerKind(None, mixer="recurrence")
    attends = attending(config, spec.num_layers)
    return replace(spec, linear_attention=linear, kinds=tuple(full if each else kept for each in attends))


def _rotates(config: Config) -> bool:
    """Whether layers know positions: unless the configuration says that there is no base of rotation."""
    ropes = config.section("rope_parameters")
    return ropes is None or "rope_theta" not in ropes.values or ropes.get("rope_theta") is not None


def olmo_hybrid(config: Config) -> Family:
    """Layers with attention call their norms otherwise than the others do."""
    attends = enumerate(attending(config, config.integer("num_hidden_layers")))
    own = {
        f"layers.{i}.{name}": (f"model.layers.{i}.{stored}",)
        for i, each in attends
        if each
        for name, stored in NORMS_BEHIND.items()
    }
    return Family(_spec, {**HYBRID, **own}, renames=RENAMES, ignore=BUFFERS)

"""The towers that several models see through: CLIP's, SigLIP's, Pixtral's.

Each reads its own configuration, and its tensors lie below `vision_tower.`. CLIP's `pre_layrnorm` is spelled so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from convert.config.config import Config
from convert.families.family import activation_named
from convert.families.vision import Shape, convolution
from jaxengine.architecture.model import Activation, Norm, Rope
from jaxengine.architecture.vision import Tower

TOWER = "vision_tower."
CLIP_LAYER = TOWER + "encoder.layers.{i}."
PIXTRAL_LAYER = TOWER + "transformer.layers.{i}."
SIGLIP_TENSORS: Mapping[str, tuple[str, ...]] = {
    "patch": (TOWER + "embeddings.patch_embedding.weight",),
    "positions": (TOWER + "embeddings.position_embedding.weight",),
    "layers.{i}.attention_norm": (CLIP_LAYER + "layer_norm1.weight",),
    "layers.{i}.qkv": tuple(f"{CLIP_LAYER}self_attn.{x}_proj.weight" for x in "qkv"),
    "layers.{i}.out": (CLIP_LAYER + "self_attn.out_proj.weight",),
    "layers.{i}.mlp_norm": (CLIP_LAYER + "layer_norm2.weight",),
    "layers.{i}.gate_up": (CLIP_LAYER + "mlp.fc1.weight",),
    "layers.{i}.down": (CLIP_LAYER + "mlp.fc2.weight",),
    "post_norm": (TOWER + "post_layernorm.weight",),
}
CLIP_TENSORS: Mapping[str, tuple[str, ...]] = {
    **SIGLIP_TENSORS,
    "class_token": (TOWER + "embeddings.class_embedding",),
    "pre_norm": (TOWER + "pre_layrnorm.weight",),
}
PIXTRAL_TENSORS: Mapping[str, tuple[str, ...]] = {
    "patch": (TOWER + "patch_conv.weight",),
    "pre_norm": (TOWER + "ln_pre.weight",),
    "layers.{i}.attention_norm": (PIXTRAL_LAYER + "attention_norm.weight",),
    "layers.{i}.qkv": tuple(f"{PIXTRAL_LAYER}attention.{x}_proj.weight" for x in "qkv"),
    "layers.{i}.out": (PIXTRAL_LAYER + "attention.o_proj.weight",),
    "layers.{i}.mlp_norm": (PIXTRAL_LAYER + "ffn_norm.weight",),
    "layers.{i}.gate_up": tuple(f"{PIXTRAL_LAYER}feed_forward.{x}_proj.weight" for x in ("gate", "up")),
    "layers.{i}.down": (PIXTRAL_LAYER + "feed_forward.down_proj.weight",),
}
HEAD = r"^vision_tower\.head\."  # SigLIP's pools all patches into one vector
IDS = r"^vision_tower\.embeddings\.position_ids$"  # the numbers 0, 1, …, which older libraries saved
IGNORE = (HEAD, IDS, r"^vision_tower\.post_layernorm\.")
STORED: Mapping[str, Shape] = {"patch": convolution}


@dataclass(frozen=True)
class TowerFamily:
    """`Tower` by a tower's configuration, and the tensors of its parameters."""

    tower: Callable[[Config], Tower]
    tensors: Mapping[str, tuple[str, ...]]


def siglip_tower(config: Config) -> Tower:
    side, hidden, heads = _side(config), config.integer("hidden_size"), config.integer("num_attention_heads")
    return Tower(
        hidden_size=hidden,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=heads,
        head_dim=_head_dim(config, hidden, heads),
        ffn_size=config.integer("intermediate_size"),
        norm=Norm("layer", config.number("layer_norm_eps"), bias=True),
        activation=_activation(config),
        grid=(side, side),
    )


def clip_tower(config: Config) -> Tower:
    """SigLIP's with a class token, a norm in front, and no bias where patches are embedded."""
    return replace(siglip_tower(config), patch_bias=False, class_token=True, pre_norm=True)


def pixtral_tower(config: Config) -> Tower:
    """Both norms have an epsilon of 1e-5, which its configuration does not mention."""
    side, hidden, heads = _side(config), config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", _head_dim(config, hidden, heads))
    parameters = config.section("rope_parameters") or config
    return Tower(
        hidden_size=hidden,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=heads,
        head_dim=head_dim,
        ffn_size=config.integer("intermediate_size"),
        norm=Norm("rms", 1e-5),
        activation=_activation(config),
        gated=True,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        patch_bias=False,
        positions="none",
        grid=(side, side),
        rope=axial_rope(parameters.number("rope_theta", 10000.0), head_dim),
        pre_norm=True,
        post_norm=False,
    )


def axial_rope(theta: float, head_dim: int) -> Rope:
    """Half of the pairs of a head turn by row, with the even frequencies, the others by column."""
    return Rope(theta=theta, axes=(0, head_dim // 4, head_dim // 4), layout="alternating")


TOWERS: Mapping[str, TowerFamily] = {
    "clip_vision_model": TowerFamily(clip_tower, CLIP_TENSORS),
    "siglip_vision_model": TowerFamily(siglip_tower, SIGLIP_TENSORS),
    "pixtral": TowerFamily(pixtral_tower, PIXTRAL_TENSORS),
}


def tower_family(config: Config) -> TowerFamily:
    """The tower that `config`, of a tower, names. Raises CheckpointError."""
    kind = config.text("model_type")
    if kind not in TOWERS:
        raise config.error("model_type", f"is not supported; supported towers are {', '.join(TOWERS)}")
    return TOWERS[kind]


def _side(config: Config) -> int:
    """Patches on a side of a tile."""
    image, patch = config.integer("image_size"), config.integer("patch_size")
    if image < patch:
        raise config.error("image_size", f"must be at least patch_size {patch}")
    return image // patch


def _head_dim(config: Config, hidden: int, heads: int) -> int:
    if hidden % heads:
        raise config.error("hidden_size", f"must be a multiple of num_attention_heads {heads}")
    return hidden // heads


def _activation(config: Config) -> Activation:
    return activation_named(config, "hidden_act", config.text("hidden_act"))

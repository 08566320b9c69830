"""InternVL, as transformers has it: a tower with layers that scale what they add, and squares of patches.

Chen et al. 2023, arXiv 2312.14238. The class token sees with the patches and makes no row.
"""

import math

from convert.config.config import Config
from convert.families.family import activation_named
from convert.families.vision import Shape, VisionFamily, convolution, image_token, sections
from convert.families.vision_towers import TOWER
from jaxengine.architecture.model import Norm, QKNorm, Vision
from jaxengine.architecture.vision import Connector, Tower

LAYER = TOWER + "encoder.layer.{i}."
PROJECTOR = "multi_modal_projector."
TENSORS = {
    "patch": (TOWER + "embeddings.patch_embeddings.projection.weight",),
    "class_token": (TOWER + "embeddings.cls_token",),
    "positions": (TOWER + "embeddings.position_embeddings",),
    "layers.{i}.attention_norm": (LAYER + "layernorm_before.weight",),
    "layers.{i}.qkv": tuple(f"{LAYER}attention.{x}_proj.weight" for x in "qkv"),
    "layers.{i}.qk_norm": tuple(f"{LAYER}attention.{x}_norm.weight" for x in "qk"),
    "layers.{i}.out": (LAYER + "attention.projection_layer.weight",),
    "layers.{i}.attention_scale": (LAYER + "lambda_1",),
    "layers.{i}.mlp_norm": (LAYER + "layernorm_after.weight",),
    "layers.{i}.gate_up": (LAYER + "mlp.fc1.weight",),
    "layers.{i}.down": (LAYER + "mlp.fc2.weight",),
    "layers.{i}.mlp_scale": (LAYER + "lambda_2",),
    "post_norm": (TOWER + "layernorm.weight",),
    "connector.norm": (PROJECTOR + "layer_norm.weight",),
    "connector.up": (PROJECTOR + "linear_1.weight",),
    "connector.down": (PROJECTOR + "linear_2.weight",),
}
STORED: dict[str, Shape] = {
    "patch": convolution,
    "class_token": lambda vision: (1, 1, vision.tower.hidden_size),
    "positions": lambda vision: (1, math.prod(vision.tower.grid) + 1, vision.tower.hidden_size),
}
IGNORE = (r"^vision_tower\.embeddings\.mask_token$",)
QK_EPS = 1e-6  # of the norm of queries and keys, which the configuration does not mention
NORMS = {"layer_norm": "layer", "rms_norm": "rms"}


def internvl(config: Config) -> VisionFamily:
    return VisionFamily(_vision, TENSORS, stored=STORED, ignore=IGNORE)


def _vision(config: Config, hidden: int) -> Vision:
    section, _ = sections(config)
    for key, value in (("vision_feature_layer", -1), ("vision_feature_select_strategy", "default")):
        if config.get(key) not in (None, value):
            raise config.error(key, f"other than {value} is not supported")
    tower, patch = _tower(section), _square(section, "patch_size")
    merge = _merge(config)
    if any(side % merge for side in tower.grid):
        raise config.error("downsample_ratio", f"must make squares of the {tower.grid[0]} patches of a side")
    return Vision(
        tower=tower,
        connector=Connector(
            merge=merge,
            norm=Norm("layer", 1e-5, bias=True),
            norm_merged=True,
            inner=hidden,
            activation=activation_named(config, "projector_hidden_act", config.text("projector_hidden_act")),
        ),
        token=image_token(config),
        patch=patch,
        patch_values=section.integer("num_channels") * patch**2,
        skipped=1,
    )


def _tower(section: Config) -> Tower:
    hidden, heads = section.integer("hidden_size"), section.integer("num_attention_heads")
    side, kind, eps = _square(section, "image_size"), section.text("norm_type"), section.number("layer_norm_eps")
    if hidden % heads:
        raise section.error("hidden_size", f"must be a multiple of num_attention_heads {heads}")
    if kind not in NORMS:
        raise section.error("norm_type", f"must be one of {', '.join(NORMS)}")
    if not section.flag("use_absolute_position_embeddings", True):
        raise section.error("use_absolute_position_embeddings", "other than true is not supported")
    if not section.flag("use_mean_pooling", True) and kind != "layer_norm":
        raise section.error("use_mean_pooling", f"other than true is not supported with {kind}")
    if (normed := section.flag("use_qk_norm", False)) and eps != QK_EPS:
        raise section.error("layer_norm_eps", f"must be {QK_EPS} with use_qk_norm")
    side //= _square(section, "patch_size")
    return Tower(
        hidden_size=hidden,
        num_layers=section.integer("num_hidden_layers"),
        num_heads=heads,
        head_dim=hidden // heads,
        ffn_size=section.integer("intermediate_size"),
        norm=Norm("layer", eps, bias=True) if kind == "layer_norm" else Norm("rms", eps),
        activation=activation_named(section, "hidden_act", section.text("hidden_act")),
        qkv_bias=section.flag("attention_bias", False),
        qk_norm=QKNorm("rms", over="projection") if normed else None,
        class_token=True,
        grid=(side, side),
        post_norm=not section.flag("use_mean_pooling", True),
        layer_scale=True,
    )


def _merge(config: Config) -> int:
    """The side of the squares of patches that become one row."""
    ratio = config.number("downsample_ratio")
    merge = round(1 / ratio) if ratio else 0
    if merge < 1 or merge * ratio != 1:
        raise config.error("downsample_ratio", "must be one over an integer")
    return merge


def _square(section: Config, key: str) -> int:
    """A length in pixels, given once or as two that are equal."""
    value = section.get(key)
    sides = value if isinstance(value, list | tuple) else [value]
    if not sides or len(set(sides)) != 1 or type(sides[0]) is not int or sides[0] < 1:
        raise section.error(key, "must be a length in pixels, or two that are equal")
    return int(sides[0])

"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen 3.5: towers that rotate by row and column, and rows of squares of patches.

A patch is stored and given as two times the same picture, as a film has two frames. Qwen2-VL: Wang et al. 2024, arXiv
2409.12191. Qwen2.5-VL: Bai et al. 2025, arXiv 2502.13923; most layers see windows alone. Qwen3-VL: arXiv 2511.21631;
learned positions too, and rows of earlier layers, added behind the first layers of the text model. Qwen 3.5 has that
tower without rows of earlier layers.
"""

import math
from collections.abc import Mapping
from typing import Any

from convert.config.config import Config
from convert.families.family import activation_named
from convert.families.vision import VisionFamily, image_token, sections
from jaxengine.architecture.model import Norm, Rope, Vision
from jaxengine.architecture.vision import Connector, Tower

EPS = 1e-6  # of every norm, whatever the configuration says
LAYER = "visual.blocks.{i}."
TENSORS: Mapping[str, tuple[str, ...]] = {
    "patch": ("visual.patch_embed.proj.weight",),
    "layers.{i}.attention_norm": (LAYER + "norm1.weight",),
    "layers.{i}.qkv": (LAYER + "attn.qkv.weight",),
    "layers.{i}.out": (LAYER + "attn.proj.weight",),
    "layers.{i}.mlp_norm": (LAYER + "norm2.weight",),
}
MERGER: Mapping[str, tuple[str, ...]] = {
    "connector.norm": ("visual.merger.ln_q.weight",),
    "connector.up": ("visual.merger.mlp.0.weight",),
    "connector.down": ("visual.merger.mlp.2.weight",),
}
QWEN2_VL: Mapping[str, tuple[str, ...]] = {
    **TENSORS,
    **MERGER,
    "layers.{i}.gate_up": (LAYER + "mlp.fc1.weight",),
    "layers.{i}.down": (LAYER + "mlp.fc2.weight",),
}
QWEN2_5_VL: Mapping[str, tuple[str, ...]] = {
    **TENSORS,
    **MERGER,
    "layers.{i}.gate_up": tuple(f"{LAYER}mlp.{x}_proj.weight" for x in ("gate", "up")),
    "layers.{i}.down": (LAYER + "mlp.down_proj.weight",),
}
QWEN3_MERGERS = {"connector": "visual.merger.", "deepstack.{i}": "visual.deepstack_merger_list.{i}."}
QWEN3_VL: Mapping[str, tuple[str, ...]] = {
    **TENSORS,
    "positions": ("visual.pos_embed.weight",),
    "layers.{i}.gate_up": (LAYER + "mlp.linear_fc1.weight",),
    "layers.{i}.down": (LAYER + "mlp.linear_fc2.weight",),
    **{f"{ours}.norm": (theirs + "norm.weight",) for ours, theirs in QWEN3_MERGERS.items()},
    **{f"{ours}.up": (theirs + "linear_fc1.weight",) for ours, theirs in QWEN3_MERGERS.items()},
    **{f"{ours}.down": (theirs + "linear_fc2.weight",) for ours, theirs in QWEN3_MERGERS.items()},
}


def qwen2_vl(config: Config) -> VisionFamily:
    return VisionFamily(_qwen2_vl, QWEN2_VL, stored={"patch": _film(config)})


def qwen2_5_vl(config: Config) -> VisionFamily:
    return VisionFamily(_qwen2_5_vl, QWEN2_5_VL, stored={"patch": _film(config)})


def qwen3_vl(config: Config) -> VisionFamily:
    return VisionFamily(_qwen3_vl, QWEN3_VL, stored={"patch": _film(config)})


def _qwen2_vl(config: Config, hidden: int) -> Vision:
    tower, _ = sections(config)
    width, norm = tower.integer("embed_dim"), Norm("layer", EPS, bias=True)
    ffn = int(width * tower.number("mlp_ratio"))
    return _vision(config, norm, _tower(tower, width, norm, ffn_size=ffn, patch_bias=False))


def _qwen2_5_vl(config: Config, hidden: int) -> Vision:
    tower, _ = sections(config)
    merge, norm = tower.integer("spatial_merge_size"), Norm("rms", EPS)
    side = tower.integer("window_size") // merge // tower.integer("patch_size")  # squares along a window
    if not side:
        raise tower.error("window_size", "must be at least spatial_merge_size patches")
    made = _tower(
        tower,
        tower.integer("hidden_size"),
        norm,
        ffn_size=tower.integer("intermediate_size"),
        gated=True,
        patch_bias=False,
        window=side * merge,
        whole_layers=_layers(tower, "fullatt_block_indexes"),
    )
    return _vision(config, norm, made)


def _qwen3_vl(config: Config, hidden: int) -> Vision:
    tower, _ = sections(config)
    norm, side = Norm("layer", EPS, bias=True), math.isqrt(tower.integer("num_position_embeddings"))
    if side**2 != tower.integer("num_position_embeddings"):
        raise tower.error("num_position_embeddings", "must be a square")
    made = _tower(
        tower,
        tower.integer("hidden_size"),
        norm,
        ffn_size=tower.integer("intermediate_size"),
        positions="interpolated",
        grid=(side, side),
    )
    deepstack = tower.get("deepstack_visual_indexes") is not None
    return _vision(config, norm, made, deepstack_layers=_layers(tower, "deepstack_visual_indexes") if deepstack else ())


def _tower(config: Config, width: int, norm: Norm, **more: Any) -> Tower:
    heads = config.integer("num_heads")
    if width % (4 * heads):
        raise config.error("num_heads", f"must divide a quarter of {width}")
    theta = (config.section("rope_parameters") or config).number("rope_theta", 10000.0)
    quarter = width // heads // 4
    return Tower(
        hidden_size=width,
        num_layers=config.integer("depth"),
        num_heads=heads,
        head_dim=width // heads,
        norm=norm,
        activation=activation_named(config, "hidden_act", config.text("hidden_act")),
        rope=Rope(theta=theta, axes=(0, quarter, quarter), layout="own"),
        post_norm=False,
        **{"positions": "none", **more},
    )


def _vision(config: Config, norm: Norm, tower: Tower, **more: Any) -> Vision:
    section, _ = sections(config)
    merge = section.integer("spatial_merge_size")
    return Vision(
        tower=tower,
        connector=Connector(merge=merge, norm=norm, inner=tower.hidden_size * merge**2),
        token=image_token(config),
        patch=section.integer("patch_size"),
        patch_values=math.prod(_sides(section)),
        squares=True,
        **more,
    )


def _layers(config: Config, key: str) -> tuple[int, ...]:
    named, count = config.get(key), config.integer("depth")
    if not isinstance(named, list | tuple) or not all(type(each) is int and 0 <= each < count for each in named):
        raise config.error(key, f"must be a list of numbers of the {count} layers")
    if list(named) != sorted(set(named)):
        raise config.error(key, "must be in order")
    return tuple(named)


def _sides(config: Config) -> tuple[int, int, int, int]:
    """Of a patch: channels, frames, height, width."""
    side = config.integer("patch_size")
    return config.integer("in_channels"), config.integer("temporal_patch_size"), side, side


def _film(config: Config) -> Any:
    """The shape of the weight that embeds patches, a convolution over frames too."""
    section, _ = sections(config)
    return lambda vision: (vision.tower.hidden_size, *_sides(section))

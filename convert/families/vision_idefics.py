"""Idefics 2, Idefics 3 and SmolVLM: SigLIP's tower with positions by where in its picture a patch is.

Idefics 2 (Laurençon et al. 2024, arXiv 2405.02246) has a resampler behind a gated connector. The others (2408.12637,
2504.05299) merge squares of patches.
"""

from dataclasses import replace
from typing import Any

from convert.config.config import Config
from convert.families.family import activation_named
from convert.families.vision import VisionFamily, image_token, patch_values, sections
from convert.families.vision_towers import SIGLIP_TENSORS, STORED, TOWER, siglip_tower
from jaxengine.architecture.model import Norm, Vision
from jaxengine.architecture.vision import Connector, Resampler, Tower

PROJECTION = "connector.modality_projection."
RESAMPLER = "connector.perceiver_resampler."
LAYER = RESAMPLER + "layers.{i}."
TOWER_TENSORS = {
    name: tuple(tensor.replace(TOWER, "vision_model.") for tensor in tensors)
    for name, tensors in SIGLIP_TENSORS.items()
}
IDEFICS2_TENSORS = {
    **TOWER_TENSORS,
    "connector.up": (PROJECTION + "gate_proj.weight", PROJECTION + "up_proj.weight"),
    "connector.down": (PROJECTION + "down_proj.weight",),
    "resampler.latents": (RESAMPLER + "latents",),
    "resampler.layers.{i}.attention_norm": (LAYER + "input_latents_norm.weight",),
    "resampler.layers.{i}.context_norm": (LAYER + "input_context_norm.weight",),
    "resampler.layers.{i}.qkv": tuple(f"{LAYER}self_attn.{x}_proj.weight" for x in "qkv"),
    "resampler.layers.{i}.out": (LAYER + "self_attn.o_proj.weight",),
    "resampler.layers.{i}.mlp_norm": (LAYER + "post_attention_layernorm.weight",),
    "resampler.layers.{i}.gate_up": (LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight"),
    "resampler.layers.{i}.down": (LAYER + "mlp.down_proj.weight",),
    "resampler.final_norm": (RESAMPLER + "norm.weight",),
}
IDEFICS3_TENSORS = {**TOWER_TENSORS, "connector.only": (PROJECTION + "proj.weight",)}
IGNORE = (r"^vision_model\.embeddings\.position_ids$",)


def idefics2(config: Config) -> VisionFamily:
    return VisionFamily(_idefics2, IDEFICS2_TENSORS, stored=STORED, ignore=IGNORE)


def idefics3(config: Config) -> VisionFamily:
    return VisionFamily(_idefics3, IDEFICS3_TENSORS, stored=STORED, ignore=IGNORE)


def _tower(section: Config) -> Tower:
    return replace(siglip_tower(section), positions="bucketised")


def _idefics2(config: Config, hidden: int) -> Vision:
    section, text = sections(config)
    act = activation_named(text, "hidden_act", text.text("hidden_act"))
    return Vision(
        tower=_tower(section),
        connector=Connector(inner=text.integer("intermediate_size"), gated=True, activation=act, bias=False),
        resampler=_resampler(config, hidden),
        **_sizes(config, section),
    )


def _resampler(config: Config, hidden: int) -> Resampler:
    section = config.section("perceiver_config")
    if section is None:
        raise config.error("perceiver_config", "must be an object")
    if section.integer("hidden_size") != hidden:
        raise section.error("hidden_size", f"must be the text model's {hidden}")
    return Resampler(
        latents=section.integer("resampler_n_latents"),
        num_layers=section.integer("resampler_depth"),
        num_heads=section.integer("resampler_n_heads"),
        num_kv_heads=section.integer("num_key_value_heads"),
        head_dim=section.integer("resampler_head_dim"),
        ffn_size=4 * hidden,
        norm=Norm("rms", section.number("rms_norm_eps")),
        activation=activation_named(section, "hidden_act", section.text("hidden_act")),
    )


def _idefics3(config: Config, hidden: int) -> Vision:
    section, _ = sections(config)
    tower, merge = _tower(section), config.integer("scale_factor")
    if tower.grid[0] % merge:
        raise config.error("scale_factor", f"must divide the {tower.grid[0]} patches of a side")
    return Vision(tower=tower, connector=Connector(merge=merge, bias=False), **_sizes(config, section))


def _sizes(config: Config, section: Config) -> dict[str, Any]:
    sizes = {"patch": section.integer("patch_size"), "patch_values": patch_values(section)}
    return {"token": image_token(config), **sizes}

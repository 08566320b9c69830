"""How Idefics 1 sees: CLIP's tower, class token included, and a resampler as wide as it, if there is one.

Layers of the text model attend to what these make, see `idefics`. A token sees the last picture that has begun, and
none behind the end of a text, until the next (transformers' `image_attention_mask_for_packed_input_ids`).
"""

from dataclasses import replace

from convert.config.config import Config
from convert.families.vision import VisionFamily, patch_values
from convert.families.vision_towers import CLIP_TENSORS, STORED, TOWER, clip_tower
from jaxengine.architecture.model import Norm, QKNorm, Vision
from jaxengine.architecture.vision import Connector, Resampler, Tower

BLOCK = "perceiver_resampler.blocks.{i}."
TENSORS = {
    **{name: tuple(each.replace(TOWER, "vision_model.") for each in CLIP_TENSORS[name]) for name in CLIP_TENSORS},
    "resampler.latents": ("perceiver_resampler.latents",),
    "resampler.layers.{i}.attention_norm": (BLOCK + "0.latents_layer_norm.weight",),
    "resampler.layers.{i}.context_norm": (BLOCK + "0.context_layer_norm.weight",),
    "resampler.layers.{i}.qkv": tuple(f"{BLOCK}0.{x}_proj.weight" for x in "qkv"),
    "resampler.layers.{i}.qk_norm": tuple(f"{BLOCK}0.{x}_layer_norm.weight" for x in "qk"),
    "resampler.layers.{i}.out": (BLOCK + "0.output_proj.weight",),
    "resampler.layers.{i}.mlp_norm": (BLOCK + "1.ln.weight",),
    "resampler.layers.{i}.gate_up": (BLOCK + "1.fc.weight",),
    "resampler.layers.{i}.down": (BLOCK + "1.c_proj.weight",),
    "resampler.final_norm": ("perceiver_resampler.layer_norm.weight",),
}
# The norm of the class token alone, which nothing reads, and the numbers 0, 1, …
IGNORE = (r"^vision_model\.post_layernorm\.", r"^vision_model\.embeddings\.position_ids$")
IMAGE = 1  # of the added ids: behind <fake_token_around_image>


def idefics1(config: Config) -> VisionFamily:
    return VisionFamily(_vision, TENSORS, stored=STORED, ignore=IGNORE)


def _vision(config: Config, hidden: int) -> Vision:
    section = config.section("vision_config")
    if section is None:
        raise config.error("vision_config", "must be an object")
    tower = _tower(section)
    return Vision(
        tower=tower,
        connector=Connector(product=False),
        token=config.integer("image_token_id", config.integer("vocab_size") + IMAGE),
        patch=section.integer("patch_size"),
        patch_values=patch_values(section),
        resampler=_resampler(config, tower) if config.flag("use_resampler", False) else None,
        cross=True,
        forgets=config.integer("eos_token_id", least=0),
    )


def _tower(section: Config) -> Tower:
    width = section.integer("embed_dim")
    return replace(clip_tower(Config({**section.values, "hidden_size": width}, section.where)), post_norm=False)


def _resampler(config: Config, tower: Tower) -> Resampler:
    section = config.section("perceiver_config")
    if section is None:
        raise config.error("perceiver_config", "must be an object")
    heads = section.integer("resampler_n_heads")
    normed = section.flag("qk_layer_norms_perceiver", False)
    return Resampler(
        latents=section.integer("resampler_n_latents"),
        num_layers=section.integer("resampler_depth"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=section.integer("resampler_head_dim"),
        ffn_size=4 * tower.hidden_size,
        norm=Norm("layer", 1e-5, bias=True),
        activation="relu",
        gated=False,
        qk_norm=QKNorm("layer", bias=True) if normed else None,
    )

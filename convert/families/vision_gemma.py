"""Gemma 3 and PaliGemma: SigLIP's tower, and one product.

Gemma 3 (Gemma Team 2025, arXiv 2503.19786) takes the mean of squares of patches. Its images see themselves, and
PaliGemma's prompts (Beyer et al. 2024, arXiv 2407.07726) see all of themselves. PaliGemma's positions begin with 1, but
only differences of rotary positions count.
"""

import math

from convert.config.config import Config
from convert.families.vision import VisionFamily, image_token, patch_values, sections
from convert.families.vision_towers import HEAD, IDS, SIGLIP_TENSORS, STORED, siglip_tower
from jaxengine.architecture.model import Norm, Vision
from jaxengine.architecture.vision import Connector

PROJECTOR = "multi_modal_projector."
GEMMA3_TENSORS = {
    **SIGLIP_TENSORS,
    "connector.norm": (PROJECTOR + "mm_soft_emb_norm.weight",),
    "connector.only": (PROJECTOR + "mm_input_projection_weight",),
}
PALIGEMMA_TENSORS = {**SIGLIP_TENSORS, "connector.only": (PROJECTOR + "linear.weight",)}
IGNORE = (HEAD, IDS)


def gemma3(config: Config) -> VisionFamily:
    tower, text = sections(config)
    shape = (tower.integer("hidden_size"), text.integer("hidden_size"))
    return VisionFamily(
        _gemma3,
        GEMMA3_TENSORS,
        stored={**STORED, "connector.only": lambda _: shape},
        orders={"connector.only": (1, 0)},
        ignore=IGNORE,
    )


def paligemma(config: Config) -> VisionFamily:
    return VisionFamily(_paligemma, PALIGEMMA_TENSORS, stored=STORED, ignore=IGNORE)


def _gemma3(config: Config, hidden: int) -> Vision:
    section, _ = sections(config)
    tower = siglip_tower(section)
    rows, side = config.integer("mm_tokens_per_image"), tower.grid[0]
    across = math.isqrt(rows)
    if across**2 != rows or side % across:
        raise config.error("mm_tokens_per_image", f"must be the square of a divisor of {side}")
    return Vision(
        tower=tower,
        connector=Connector(
            merge=side // across,
            pooled=True,
            norm=Norm("rms_plus_one", section.number("layer_norm_eps")),
            norm_merged=True,
            bias=False,
        ),
        token=image_token(config),
        patch=section.integer("patch_size"),
        patch_values=patch_values(section),
        horizon="image",
    )


def _paligemma(config: Config, hidden: int) -> Vision:
    section, _ = sections(config)
    return Vision(
        tower=siglip_tower(section),
        connector=Connector(),
        token=image_token(config),
        patch=section.integer("patch_size"),
        patch_values=patch_values(section),
        horizon="prompt",
    )

"""LLaVA 1.5, LLaVA-NeXT, Pixtral and Mistral 3, the latter two with Pixtral's tower: features of chosen layers, and two
products.

LLaVA: Liu et al. 2023, arXiv 2310.03744. Pixtral: Agrawal et al. 2024, arXiv 2410.07073.
"""

from dataclasses import replace
from typing import Any

from convert.config.config import Config
from convert.families.family import activation_named
from convert.families.vision import (
    VisionFamily,
    feature_layers,
    image_token,
    patch_values,
    sections,
)
from convert.families.vision_towers import IGNORE, STORED, tower_family
from jaxengine.architecture.model import Norm, Vision
from jaxengine.architecture.vision import Connector

PROJECTOR = "multi_modal_projector."
TENSORS = {
    "connector.norm": (PROJECTOR + "norm.weight",),
    "connector.squeeze": (PROJECTOR + "patch_merger.merging_layer.weight",),
    "connector.up": (PROJECTOR + "linear_1.weight",),
    "connector.down": (PROJECTOR + "linear_2.weight",),
    "newline": ("image_newline",),
}


def llava(config: Config) -> VisionFamily:
    """The way to see of a model with LLaVA's connector: its tower is one of several."""
    tower, _ = sections(config)
    family = tower_family(tower)
    stored = {**STORED, "connector.squeeze": _squeeze}
    return VisionFamily(
        _vision,
        {**family.tensors, **TENSORS},
        stored=stored,
        orders={"connector.squeeze": (0, 2, 1)},  # the features of a square lie in the order feature, patch
        ignore=IGNORE,
    )


def _vision(config: Config, hidden: int) -> Vision:
    section, text = sections(config)
    tower, kind = tower_family(section).tower(section), config.text("model_type")
    features = feature_layers(config, tower.num_layers)
    skipped = int(kind != "mistral3" and _strategy(config) == "default")
    if kind == "mistral3" and len(features) > 1:
        raise config.error("vision_feature_layer", "must be one layer")
    return Vision(
        # layers behind the last feature make no row
        tower=replace(tower, num_layers=max(1, *features), post_norm=False),
        connector=Connector(
            inner=hidden,
            activation=activation_named(config, "projector_hidden_act", config.text("projector_hidden_act")),
            bias=config.flag("multimodal_projector_bias", True),
            **(_merger(config, text) if kind == "mistral3" else {}),
        ),
        token=image_token(config),
        patch=section.integer("patch_size"),
        patch_values=patch_values(section),
        features=features,
        skipped=skipped,
        **(_anyres(config) if kind == "llava_next" else {}),
    )


def _merger(config: Config, text: Config) -> dict[str, Any]:
    return {
        "merge": config.integer("spatial_merge_size"),
        "norm": Norm("rms", text.number("rms_norm_eps")),
        "squeeze": True,
    }


def _anyres(config: Config) -> dict[str, Any]:
    pinpoints = config.get("image_grid_pinpoints")
    if not isinstance(pinpoints, list) or not all(_is_size(each) for each in pinpoints):
        raise config.error("image_grid_pinpoints", "must be a list of heights and widths")
    return {"rows": "unpadded", "pinpoints": tuple(map(tuple, pinpoints))}


def _is_size(pinpoint: Any) -> bool:
    return isinstance(pinpoint, list | tuple) and len(pinpoint) == 2 and all(type(n) is int and n > 0 for n in pinpoint)


def _strategy(config: Config) -> str:
    strategy = config.text("vision_feature_select_strategy", "default")
    if strategy not in ("default", "full"):
        raise config.error("vision_feature_select_strategy", "must be default or full")
    return strategy


def _squeeze(vision: Vision) -> tuple[int, ...]:
    return (vision.tower.hidden_size, vision.tower.hidden_size * vision.connector.merge**2)

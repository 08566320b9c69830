"""A way to see: how the configuration of a model that takes pictures becomes a `Vision`, and its tensors parameters.

`vision_towers` has the towers, which several models share, the other `vision_*` the models.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from convert.config.config import Config
from convert.mapping.part import Recipe
from convert.mapping.recipes import Layout, recipes
from jaxengine.architecture.model import ModelSpec, Vision
from jaxengine.architecture.vision_parameters import RESAMPLER, VISION, vision_parameters

Shape = Callable[[Vision], tuple[int, ...]]


@dataclass(frozen=True)
class VisionFamily:
    """As `Family` has the text part. Parameters lack their prefix "vision.".

    spec: the whole configuration, with transformers' defaults filled in, and the text model's width → the `Vision`.
    tensors: their names lack a "model." in front, and behind `vision_tower` a "vision_model.".
    stored: the shape in which a tensor is stored, where outputs and inputs are not one axis each.
    orders: the axes of a parameter in the order in which they are stored.
    ignore: tensors that make no row of a picture.
    """

    spec: Callable[[Config, int], Vision]
    tensors: Mapping[str, tuple[str, ...]]
    layout: Layout = field(default_factory=Layout)
    stored: Mapping[str, Shape] = field(default_factory=dict)
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()


def vision_recipes(spec: ModelSpec, family: VisionFamily) -> dict[str, Recipe]:
    """Recipes of the parameters by which `spec` sees."""
    assert spec.vision is not None
    table = {name.removeprefix(VISION): parameter for name, parameter in vision_parameters(spec).items()}
    resampled = {name: parameter for name, parameter in table.items() if name.startswith(RESAMPLER)}
    rest = {name: parameter for name, parameter in table.items() if name not in resampled}
    made = recipes(spec.tower_spec, family.tensors, family.layout, rest)
    if resampled:
        made |= recipes(spec.resampler_spec, family.tensors, family.layout, resampled)
    for name, shape in family.stored.items():
        if name in made:
            (part,) = made[name].parts
            made[name] = Recipe((replace(part, stored=shape(spec.vision), order=family.orders.get(name, ())),))
    return {f"{VISION}{name}": recipe for name, recipe in made.items()}


def convolution(vision: Vision) -> tuple[int, ...]:
    """The shape of the weight that embeds patches as a convolution: [width, channels, y, x]."""
    channels = vision.patch_values // vision.patch**2
    return (vision.tower.hidden_size, channels, vision.patch, vision.patch)


def image_token(config: Config) -> int:
    return config.integer(config.spelled("image_token_id", "image_token_index"), least=0)


def sections(config: Config) -> tuple[Config, Config]:
    """The configurations of tower and text part."""
    found = [config.section(key) for key in ("vision_config", "text_config")]
    for key, section in zip(("vision_config", "text_config"), found, strict=True):
        if section is None:
            raise config.error(key, "must be an object")
    vision, text = found
    assert vision is not None and text is not None
    return vision, text


def feature_layers(config: Config, layers: int, key: str = "vision_feature_layer") -> tuple[int, ...]:
    """How many of a tower's `layers` are behind each of the features that the configuration names, which counts the
    embeddings as its first and may count from the end.
    """
    named = config.get(key)
    named = named if isinstance(named, list) else [named]
    if not named or not all(type(each) is int and -layers - 1 <= each <= layers for each in named):
        raise config.error(key, f"must be numbers of layers, or a list of them, of the {layers} that there are")
    return tuple(each % (layers + 1) for each in named)


def patch_values(tower: Config) -> int:
    return math.prod((tower.integer("num_channels", 3), tower.integer("patch_size"), tower.integer("patch_size")))

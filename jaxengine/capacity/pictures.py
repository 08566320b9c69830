"""The least that a picture can cost a model that sees: its tower is read once, and its patches see each other."""

import math

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.vision import Tower
from jaxengine.architecture.vision_parameters import VISION, vision_parameters
from jaxengine.capacity.roofline import Cost

OF_PATCHES = tuple(f"{VISION}{name}" for name in ("layers.", "patch"))  # what each patch is multiplied by


def picture_cost(spec: ModelSpec, patches: int, itemsize: float) -> Cost:
    """Of a picture of so many patches, in tiles where these have one size; `itemsize` is the bytes of a weight."""
    assert spec.vision is not None
    vision = spec.vision
    sizes = {name: math.prod(each.shape) for name, each in vision_parameters(spec).items() if each.inputs}
    tower = sum(size for name, size in sizes.items() if name.startswith(OF_PATCHES))
    connector = sum(sizes.values()) - tower
    segment = math.prod(vision.tile) if vision.tile else patches
    products = 2 * patches * (tower + connector / vision.connector.merge**2)
    return Cost(sum(sizes.values()) * itemsize, products + _attention(vision.tower, patches, min(segment, patches)))


def _attention(tower: Tower, patches: int, segment: int) -> int:
    """Operations of all layers, in which a patch sees `segment` others, or those of its window."""
    whole = len(tower.whole_layers) if tower.window else tower.num_layers
    seen = whole * segment + (tower.num_layers - whole) * min(tower.window**2, segment)
    return 4 * patches * seen * tower.num_heads * tower.head_dim

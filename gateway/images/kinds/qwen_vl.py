"""Qwen2-VL, 2.5-VL and 3-VL: a picture keeps its shape; its sides become multiples of what is one row."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from gateway.images.kinds.kind import Kind
from gateway.images.kinds.tiles import given
from gateway.images.plan import Detail, PicturePlan
from gateway.images.room import Room
from gateway.images.settings import Settings, UnusableProcessor
from jaxengine.architecture.picture import PictureShape

LOW_PIXELS = 512 * 512  # OpenAI's "low" is a picture of 512 x 512 pixels
DEFAULTS = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}  # transformers', in pixels, whatever their names
PATCH_DEFAULTS = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}


class QwenVL(Kind):
    """One processor for all of them, with the patches and the bounds of each."""

    model_types: ClassVar[tuple[str, ...]] = (
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_5",
        "qwen3_5_moe",
    )
    processors: ClassVar[dict[str, str]] = {"Qwen2VLImageProcessor": "qwen2_vl"}
    default: ClassVar[str] = "Qwen2VLImageProcessor"

    def __init__(self, settings: Settings, room: Room) -> None:
        super().__init__(settings, room)
        image, vision = settings.image, settings.vision
        self.refused = ("<|video_pad|>",)
        self.patch, self.frames, self.merge = (int(given(image, *each)) for each in PATCH_DEFAULTS.items())
        self.least, self.most = pixel_bounds(image)
        if image.get("do_resize") is False:
            raise UnusableProcessor("preprocessor_config.json: do_resize must be true")
        for name, mine in (("patch_size", self.patch), ("spatial_merge_size", self.merge)):
            if vision.get(name, mine) != mine:
                raise UnusableProcessor(f"preprocessor_config.json: {name} must be {vision[name]}, as in config.json")
        self.held = self._held()
        self.given = {
            key: value for key, value in self.given.items() if key not in ("size", "min_pixels", "max_pixels")
        }

    @property
    def token(self) -> int:
        return self.settings.token("image_token_id", default=151655)

    def inline(self, spelled: str) -> str:
        return f"<|vision_start|>{spelled}<|vision_end|>"

    def plan(self, width: int, height: int, detail: Detail) -> PicturePlan:
        chosen: Literal["low", "high"] = "low" if detail == "low" else "high"
        least, most = self._bounds(height, width, chosen)
        high, wide = smart_resize(height, width, self.patch * self.merge, least, most)
        grid = high // self.patch, wide // self.patch
        rows = grid[0] * grid[1] // self.merge**2
        return PicturePlan(PictureShape((grid,), height, width), (rows,), chosen)

    def arguments(self, plan: PicturePlan) -> dict[str, Any]:
        least, most = self._bounds(plan.shape.height, plan.shape.width, plan.detail)
        return {"size": {"shortest_edge": least, "longest_edge": most}}

    def flatten(self, processed: Mapping[str, Any], plan: PicturePlan) -> np.ndarray:
        return np.asarray(processed["pixel_values"], np.float32)  # as they come: in squares of merge x merge

    def _bounds(self, height: int, width: int, detail: Literal["low", "high"]) -> tuple[int, int]:
        """Fewest and most pixels that this picture is given: by the checkpoint, or as many as `room` holds."""
        most = max(self.least, min(self.most, LOW_PIXELS)) if detail == "low" else self.most
        high, wide = smart_resize(height, width, self.patch * self.merge, self.least, most)
        return self.least, most if high * wide <= self.held else self.held

    def _held(self) -> int:
        """Pixels that `room` holds."""
        held = min(self.room.patches, self.room.tokens * self.merge**2) * self.patch**2
        if held < self.least:
            raise UnusableProcessor(
                f"preprocessor_config.json: images have at least {self.least} pixels, and the engine takes {held}: "
                "see --max-image-patches"
            )
        return held


def pixel_bounds(image: Mapping[str, Any]) -> tuple[int, int]:
    """Fewest and most pixels of a picture: of their own, as the first checkpoints have them, or as edges of `size`."""
    size = given(image, "size", DEFAULTS)
    least = next((each for each in (image.get("min_pixels"), size.get("shortest_edge")) if each), None)
    most = next((each for each in (image.get("max_pixels"), size.get("longest_edge")) if each), None)
    if not isinstance(least, int) or not isinstance(most, int) or not 0 < least <= most:
        raise UnusableProcessor(
            f"preprocessor_config.json: size must have shortest_edge and longest_edge in pixels, not {dict(size)}"
        )
    return least, most


def smart_resize(height: int, width: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """The sides as multiples of `factor` with `least` to `most` pixels, in about the same proportion.

    Source: transformers' function of this name.
    """
    high, wide = round(height / factor) * factor, round(width / factor) * factor
    if high * wide > most:
        shrink = math.sqrt(height * width / most)
        high = max(factor, math.floor(height / shrink / factor) * factor)
        wide = max(factor, math.floor(width / shrink / factor) * factor)
    elif high * wide < least:
        stretch = math.sqrt(least / (height * width))
        high = math.ceil(height * stretch / factor) * factor
        wide = math.ceil(width * stretch / factor) * factor
    return high, wide

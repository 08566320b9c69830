"""Idefics2: a picture keeps its shape within bounds, alone or behind its four quarters. Each has as many rows."""

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from gateway.images.kinds.kind import Kind
from gateway.images.kinds.tiles import given, patch_edge
from gateway.images.plan import Detail, PicturePlan
from gateway.images.room import Room
from gateway.images.settings import Settings, UnusableProcessor, size_of
from jaxengine.architecture.picture import PictureShape


class Idefics2(Kind):
    """Patches with a pixel of padding are left out, as the tower's mask has it."""

    model_types: ClassVar[tuple[str, ...]] = ("idefics2",)
    processors: ClassVar[dict[str, str]] = {"Idefics2ImageProcessor": "idefics2"}
    default: ClassVar[str] = "Idefics2ImageProcessor"
    nested: ClassVar[bool] = True

    def __init__(self, settings: Settings, room: Room) -> None:
        super().__init__(settings, room)
        image = settings.image
        self.patch = patch_edge(settings, 32)
        self.size = size_of(given(image, "size", {"shortest_edge": 378, "longest_edge": 980}), square=False)
        if image.get("do_resize") is False or not {"shortest_edge", "longest_edge"} <= self.size.keys():
            raise UnusableProcessor("preprocessor_config.json: size must have shortest_edge and longest_edge")
        self.splits = bool(image.get("do_image_splitting"))
        self.tile_rows = int(given(settings.processor, "image_seq_len", 64))
        known = dict(settings.model.get("perceiver_config") or {}).get("resampler_n_latents", 64)
        if self.tile_rows != known:
            raise UnusableProcessor(f"processor_config.json: image_seq_len must be {known}, as in config.json")
        self.fake = settings.spelling("image_boundary_token", "<fake_token_around_image>")

    @property
    def token(self) -> int:
        return self.settings.token("image_token_id", default=32001)

    def plan(self, width: int, height: int, detail: Detail) -> PicturePlan:
        chosen: Literal["low", "high"] = "high" if self.splits and detail != "low" else "low"
        tiles = tuple(self._grid(*tile) for tile in quarters(height, width, split=chosen == "high"))
        pieces = (self.fake, self.tile_rows, self.fake) * len(tiles)
        return PicturePlan(PictureShape(tiles, height, width), pieces, chosen)

    def arguments(self, plan: PicturePlan) -> dict[str, Any]:
        return {"do_image_splitting": plan.detail == "high", "do_pad": True}

    def join(self, parts: Sequence[str], pictures: Sequence[str]) -> tuple[bool, str]:
        """Two marks that meet are one, and a word right behind a mark is set off by a space."""
        begins, text = super().join(parts, pictures)
        text = text.replace(self.fake * 2, self.fake)
        return begins, re.sub(rf"{re.escape(self.fake)}(?=[^\s<])", f"{self.fake} ", text)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        high, wide = resized(height, width, self.size["shortest_edge"], self.size["longest_edge"])
        if min(high, wide) < self.patch:
            raise UnusableProcessor(f"preprocessor_config.json: size must hold a patch of {self.patch} pixels")
        return high // self.patch, wide // self.patch


def quarters(height: int, width: int, *, split: bool) -> list[tuple[int, int]]:
    """Height and width of each part that is shown: the four quarters if it is `split`, and the whole."""
    if not split:
        return [(height, width)]
    if min(height, width) < 2:
        raise ValueError(f"an image must have at least 2 pixels on each side, got {width} x {height}")
    high, wide = height // 2, width // 2
    parts = [(high, wide), (high, width - wide), (height - high, wide), (height - high, width - wide)]
    return [*parts, (height, width)]


def resized(height: int, width: int, shortest: int, longest: int) -> tuple[int, int]:
    """The sides with at most `longest` pixels, in proportion, and then with at least `shortest`, out of it if need be.

    Source: transformers' `get_resize_output_image_size` of Idefics2, its rounding included.
    """
    proportion = width / height
    if width >= height and width > longest:
        height, width = int(longest / proportion), longest
    elif height > width and height > longest:
        height, width = longest, int(longest * proportion)
    return max(height, shortest), max(width, shortest)

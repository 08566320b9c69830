"""Llama 3.2 Vision: a picture is fitted into a canvas of up to four tiles, and has one token in the text."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gateway.images.kinds.kind import Kind
from gateway.images.kinds.tiles import given, grid_of, patch_edge, patches_of, tile_of
from gateway.images.plan import Detail, PicturePlan
from gateway.images.room import Room
from gateway.images.settings import Settings, UnusableProcessor
from jaxengine.architecture.picture import PictureShape, fitting_canvas


class Mllama(Kind):
    """Layers of the text model attend to a picture's tiles, so its token is no row."""

    model_types: ClassVar[tuple[str, ...]] = ("mllama",)
    processors: ClassVar[dict[str, str]] = {"MllamaImageProcessor": "mllama"}
    default: ClassVar[str] = "MllamaImageProcessor"

    def __init__(self, settings: Settings, room: Room) -> None:
        super().__init__(settings, room)
        self.patch = patch_edge(settings, 14)
        self.tile = tile_of(settings.image, {"height": 224, "width": 224}, square=True)
        self.grid = grid_of(self.tile, self.patch)
        self.tiles = int(given(settings.image, "max_image_tiles", 4))
        known = settings.vision.get("max_num_tiles", 4), settings.vision.get("image_size", 448)
        if (self.tiles, *self.tile) != (known[0], known[1], known[1]):
            found = f"max_image_tiles {self.tiles} and size {self.tile}"
            raise UnusableProcessor(f"preprocessor_config.json: {found} must be those of config.json, {known}")
        self.bos = settings.spelling("bos_token", "<|begin_of_text|>")

    @property
    def token(self) -> int:
        return self.settings.token("image_token_id", "image_token_index", default=128256)

    def join(self, parts: Sequence[str], pictures: Sequence[str]) -> tuple[bool, str]:
        """transformers' writes the token that begins a text behind the pictures in front, unless there is one."""
        whole = super().join(parts, pictures)[1]
        if self.bos in whole:
            return False, whole
        first = next((i for i, part in enumerate(parts[:-1]) if part), len(parts) - 1)
        front = "".join(pictures[:first])
        return False, front + self.bos + whole[len(front) :]

    def plan(self, width: int, height: int, detail: Detail) -> PicturePlan:
        down, across = fitting_canvas(height, width, self.tile[0], self.tiles)
        return PicturePlan(PictureShape((self.grid,) * (down * across), height, width), (1,), "high")

    def flatten(self, processed: Mapping[str, Any], plan: PicturePlan) -> np.ndarray:
        tiles = np.asarray(processed["pixel_values"]).reshape(self.tiles, 3, *self.tile)
        return patches_of([*tiles[: len(plan.shape.tiles)]], plan.shape.tiles, self.patch)

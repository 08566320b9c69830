"""Pixtral and Mistral 3: a picture keeps its shape; a token ends each of its rows, and another one the picture."""

import math
from bisect import bisect_left
from typing import Any, ClassVar, Literal

from gateway.images.kinds.kind import Kind
from gateway.images.kinds.tiles import given, patch_edge
from gateway.images.plan import Detail, PicturePlan, Piece
from gateway.images.room import Room
from gateway.images.settings import Settings, UnusableProcessor, size_of
from jaxengine.architecture.picture import PictureShape

LOW_EDGE = 512  # OpenAI's "low" is a picture of 512 x 512 pixels
DEFAULT_TOKENS = {"llava": 32000, "mistral3": 10}


class Pixtral(Kind):
    model_types: ClassVar[tuple[str, ...]] = ("mistral3", "llava")
    processors: ClassVar[dict[str, str]] = {"PixtralImageProcessor": "pixtral"}
    default: ClassVar[str] = "PixtralImageProcessor"

    def __init__(self, settings: Settings, room: Room) -> None:
        super().__init__(settings, room)
        self.patch = int(given(settings.processor, "patch_size", 16))
        self.merge = int(given(settings.processor, "spatial_merge_size", 1))
        self._check_model()
        size = size_of(given(settings.image, "size", {"longest_edge": 1024}), square=True)
        edge = size.get("longest_edge")
        self.most = (edge, edge) if edge else (size["height"], size["width"])  # of height and width, in pixels
        if settings.image.get("do_resize") is False or settings.image.get("do_center_crop"):
            raise UnusableProcessor("preprocessor_config.json: do_resize must be true, and do_center_crop false")
        self.stop = settings.spelling("image_break_token", "[IMG_BREAK]")
        self.end = settings.spelling("image_end_token", "[IMG_END]")
        self.refused = (self.stop, self.end)

    @classmethod
    def serves(cls, settings: Settings) -> bool:
        return super().serves(settings) and settings.vision.get("model_type", "pixtral") == "pixtral"

    @property
    def token(self) -> int:
        return self.settings.token(
            "image_token_id", "image_token_index", default=DEFAULT_TOKENS[self.settings.model_type]
        )

    def plan(self, width: int, height: int, detail: Detail) -> PicturePlan:
        chosen: Literal["low", "high"] = "low" if detail == "low" else "high"
        rows, columns = grid(height, width, self._most(height, width, chosen), self.patch * self.merge)
        if not rows or not columns:
            raise ValueError(f"an image of {width} x {height} pixels is too narrow: one side would have no pixel left")
        pieces: list[Piece] = [columns, self.stop] * rows
        pieces[-1] = self.end
        tile = rows * self.merge, columns * self.merge
        return PicturePlan(PictureShape((tile,), height, width), tuple(pieces), chosen)

    def arguments(self, plan: PicturePlan) -> dict[str, Any]:
        height, width = self._most(plan.shape.height, plan.shape.width, plan.detail)
        return {"size": {"height": height, "width": width}, "patch_size": self.patch * self.merge}

    def _most(self, height: int, width: int, detail: Literal["low", "high"]) -> tuple[int, int]:
        """Of height and width of this picture, in pixels: those of the checkpoint, or as much as `room` holds."""
        most = max(self.most)

        def within(edge: int) -> tuple[int, int]:
            return min(self.most[0], edge), min(self.most[1], edge)

        def too_large(edge: int) -> bool:
            rows, columns = grid(height, width, within(edge), self.patch * self.merge)
            return rows * columns > min(self.room.tokens, self.room.patches // self.merge**2)

        longest = min(most, LOW_EDGE) if detail == "low" else most
        return within(max(1, bisect_left(range(1, longest + 1), True, key=too_large)))

    def _check_model(self) -> None:
        merge = given(self.settings.model, "spatial_merge_size", 2) if self.settings.model_type == "mistral3" else 1
        if (known := (patch_edge(self.settings, 16), merge)) != (self.patch, self.merge):
            raise UnusableProcessor(
                f"processor_config.json: patch_size and spatial_merge_size must be {known}, as in config.json"
            )


def grid(height: int, width: int, most: tuple[int, int], patch: int) -> tuple[int, int]:
    """Rows and columns of squares of `patch` pixels that cover the picture, once it is no larger than `most`.

    Source: transformers' `get_resize_output_image_size` of Pixtral.
    """
    shrink = max(height / most[0], width / most[1])
    if shrink > 1:
        height, width = math.floor(height / shrink), math.floor(width / shrink)
    return (height - 1) // patch + 1, (width - 1) // patch + 1

"""LLaVA-NeXT: the picture as one tile, and again, larger, cut into the tiles of the resolution that suits it best."""

from collections.abc import Iterable
from typing import Any, ClassVar

from gateway.images.kinds.llava import CLIP_SIZES, Llava
from gateway.images.kinds.tiles import given
from gateway.images.plan import Detail, PicturePlan
from gateway.images.room import Room
from gateway.images.settings import Settings, UnusableProcessor
from jaxengine.architecture.picture import PictureShape

PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]  # transformers' default


class LlavaNext(Llava):
    """There is no choice of detail: how the rows are laid out follows from the picture's size."""

    model_types: ClassVar[tuple[str, ...]] = ("llava_next",)
    processors: ClassVar[dict[str, str]] = {"LlavaNextImageProcessor": "llava_next"}
    default: ClassVar[str] = "LlavaNextImageProcessor"
    nested: ClassVar[bool] = True
    sizes: ClassVar[dict[str, dict[str, Any]]] = {"LlavaNextImageProcessor": CLIP_SIZES}

    def __init__(self, settings: Settings, room: Room) -> None:
        super().__init__(settings, room)
        if self.tile[0] != self.tile[1]:
            raise UnusableProcessor(f"preprocessor_config.json: tiles must be square, not {self.tile}")
        self.pinpoints = pinpoints_of(given(settings.image, "image_grid_pinpoints", PINPOINTS), self.tile[0])
        known = settings.model.get("image_grid_pinpoints", self.pinpoints)
        if list(map(list, known)) != list(map(list, self.pinpoints)):
            raise UnusableProcessor("preprocessor_config.json: image_grid_pinpoints must be those of config.json")

    def plan(self, width: int, height: int, detail: Detail) -> PicturePlan:
        best_height, best_width = best_pinpoint(height, width, self.pinpoints)
        down, across = best_height // self.tile[0], best_width // self.tile[1]
        rows, columns = unpadded(height, width, down * self.grid[0], across * self.grid[1])
        shape = PictureShape((self.grid,) * (1 + down * across), height, width)
        return PicturePlan(shape, (self.tile_rows + rows * (columns + 1),), "high")  # each row ends with a newline


def pinpoints_of(value: Any, tile: int) -> list[tuple[int, int]]:
    """Raises UnusableProcessor: a resolution is no whole number of tiles."""
    found = [tuple(each) for each in value]
    if not found or any(len(each) != 2 or each[0] % tile or each[1] % tile for each in found):
        raise UnusableProcessor(
            f"preprocessor_config.json: image_grid_pinpoints must be multiples of the tiles' {tile} pixels, not {value}"
        )
    return [(height, width) for height, width in found]


def best_pinpoint(height: int, width: int, pinpoints: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The resolution that keeps most of the picture's pixels, and of equals the one with the fewest left over.

    Source: transformers' `select_best_resolution`, its rounding included.
    """

    def quality(pinpoint: tuple[int, int]) -> tuple[int, int]:
        scale = min(pinpoint[1] / width, pinpoint[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - pinpoint[0] * pinpoint[1]

    return max(pinpoints, key=quality)


def unpadded(height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of patches, of a grid of `rows` x `columns`, that are no padding around the picture.

    Source: transformers' `LlavaNextProcessor`, its rounding included.
    """
    if width / height > columns / rows:
        used = int(round(height * (columns / width), 7))
        return rows - (rows - used) // 2 * 2, columns
    used = int(round(width * (rows / height), 7))
    return rows, columns - (columns - used) // 2 * 2

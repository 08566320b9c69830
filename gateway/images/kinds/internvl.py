"""InternVL: a picture is stretched over the arrangement of tiles that comes closest to its shape, and shown whole."""

from functools import lru_cache
from typing import Any, ClassVar, Literal

from gateway.images.kinds.kind import Kind
from gateway.images.kinds.tiles import given, grid_of, patch_edge, tile_of
from gateway.images.plan import Detail, PicturePlan
from gateway.images.room import Room
from gateway.images.settings import Settings, UnusableProcessor
from jaxengine.architecture.picture import PictureShape


class InternVL(Kind):
    """transformers cuts into tiles whatever `crop_to_patches` of the checkpoint says, as many as `room` holds."""

    model_types: ClassVar[tuple[str, ...]] = ("internvl",)
    processors: ClassVar[dict[str, str]] = {"GotOcr2ImageProcessor": "got_ocr2"}
    default: ClassVar[str] = "GotOcr2ImageProcessor"

    def __init__(self, settings: Settings, room: Room) -> None:
        super().__init__(settings, room)
        image = settings.image
        self.patch = patch_edge(settings, 14)
        self.tile = tile_of(image, {"height": 384, "width": 384}, square=True)
        self.grid = grid_of(self.tile, self.patch)
        self.least, self.most = int(given(image, "min_patches", 1)), int(given(image, "max_patches", 12))
        if not 1 <= self.least <= self.most:
            raise UnusableProcessor("preprocessor_config.json: max_patches must be at least min_patches, and that 1")
        self.tile_rows = int(given(settings.processor, "image_seq_length", 256))
        made = int(self.grid[0] * self.grid[1] * float(given(settings.model, "downsample_ratio", 0.5)) ** 2)
        if made != self.tile_rows:
            raise UnusableProcessor(f"processor_config.json: image_seq_length must be {made}, which the model makes")
        self.most = max(self.least, min(self.most, self._held()))
        self.begin = settings.spelling("start_image_token", "<img>")
        self.end = settings.spelling("end_image_token", "</img>")
        self.refused = (settings.spelling("video_token", "<video>"),)

    @property
    def token(self) -> int:
        return self.settings.token("image_token_id", default=151667)

    def plan(self, width: int, height: int, detail: Detail) -> PicturePlan:
        chosen: Literal["low", "high"] = "high" if self.most > 1 and detail != "low" else "low"
        tiles = 1
        if chosen == "high":
            across, down = arrangement(height, width, self.tile, self.least, self.most)
            tiles = down * across + (down * across > 1)
        pieces = (self.begin, self.tile_rows * tiles, self.end)
        return PicturePlan(PictureShape((self.grid,) * tiles, height, width), pieces, chosen)

    def arguments(self, plan: PicturePlan) -> dict[str, Any]:
        return {"crop_to_patches": plan.detail == "high", "max_patches": self.most}

    def _held(self) -> int:
        """Tiles that `room` holds beside the one of the whole picture, or one alone."""
        held = min(self.room.patches // (self.grid[0] * self.grid[1]), self.room.tokens // self.tile_rows)
        return max(held - 1, 1)


@lru_cache(maxsize=1024)
def arrangement(height: int, width: int, tile: tuple[int, int], least: int, most: int) -> tuple[int, int]:
    """Columns and rows of `least` to `most` tiles whose proportion is nearest to the picture's.

    Of equally near ones, the later one, which has more tiles, if the picture has more than half of its pixels.
    Source: transformers' `get_optimal_tiled_canvas`.
    """
    sides = range(1, most + 1)
    grids = [(across, down) for across in sides for down in sides if least <= across * down <= most]
    best, nearest = (1, 1), float("inf")
    for across, down in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        distance = abs(width / height - across / down)
        fills = width * height > 0.5 * tile[0] * tile[1] * across * down
        if distance < nearest or (distance == nearest and fills):
            best, nearest = (across, down), distance
    return best

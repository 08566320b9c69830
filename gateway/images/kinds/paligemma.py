"""PaliGemma: every picture is one square. Behind the last one the text begins, and ends with a newline."""

from collections.abc import Sequence
from typing import ClassVar

from gateway.images.kinds.kind import Kind
from gateway.images.kinds.tiles import grid_of, patch_edge, tile_of
from gateway.images.plan import Detail, PicturePlan
from gateway.images.room import Room
from gateway.images.settings import Settings, UnusableProcessor
from jaxengine.architecture.picture import PictureShape


class PaliGemma(Kind):
    model_types: ClassVar[tuple[str, ...]] = ("paligemma",)
    processors: ClassVar[dict[str, str]] = {"SiglipImageProcessor": "siglip"}
    default: ClassVar[str] = "SiglipImageProcessor"

    def __init__(self, settings: Settings, room: Room) -> None:
        super().__init__(settings, room)
        self.patch = patch_edge(settings, 14)
        self.grid = grid_of(tile_of(settings.image, {"height": 224, "width": 224}, square=False), self.patch)
        self.rows = self.grid[0] * self.grid[1]
        if settings.image.get("image_seq_length", self.rows) != self.rows:
            raise UnusableProcessor(f"preprocessor_config.json: image_seq_length must be {self.rows}, one a patch")
        self.bos = settings.spelling("bos_token", "<bos>")

    @property
    def token(self) -> int:
        return self.settings.token("image_token_id", "image_token_index", default=256000)

    def plan(self, width: int, height: int, detail: Detail) -> PicturePlan:
        return PicturePlan(PictureShape((self.grid,), height, width), (self.rows,), "high")

    def join(self, parts: Sequence[str], pictures: Sequence[str]) -> tuple[bool, str]:
        _, text = super().join([*parts[:-1], f"{self.bos}{parts[-1]}\n"], pictures)
        return True, text

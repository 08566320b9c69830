"""LLaVA: every picture is one tile, resized and cropped to the tower's size."""

from typing import Any, ClassVar

from gateway.images.kinds.kind import Kind
from gateway.images.kinds.tiles import grid_of, patch_edge, tile_of
from gateway.images.plan import Detail, PicturePlan
from gateway.images.room import Room
from gateway.images.settings import Settings
from jaxengine.architecture.picture import PictureShape

CLIP_SIZES: dict[str, Any] = {"size": {"shortest_edge": 224}, "crop": {"height": 224, "width": 224}, "square": False}


class Llava(Kind):
    """CLIP's processor, LLaVA's own, which may pad to a square first, or SigLIP's, which does not crop."""

    model_types: ClassVar[tuple[str, ...]] = ("llava", "vipllava")
    processors: ClassVar[dict[str, str]] = {
        "CLIPImageProcessor": "clip",
        "LlavaImageProcessor": "llava",
        "SiglipImageProcessor": "siglip",
    }
    default: ClassVar[str] = "LlavaImageProcessor"
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "CLIPImageProcessor": CLIP_SIZES,
        "LlavaImageProcessor": CLIP_SIZES,
        "SiglipImageProcessor": {"size": {"height": 224, "width": 224}, "square": False},
    }

    def __init__(self, settings: Settings, room: Room) -> None:
        super().__init__(settings, room)
        self.patch = patch_edge(settings, 14)
        self.tile = tile_of(settings.image, **self.sizes[self.name])
        self.grid = grid_of(self.tile, self.patch)

    @classmethod
    def serves(cls, settings: Settings) -> bool:
        return super().serves(settings) and settings.vision.get("model_type") != "pixtral"

    @property
    def token(self) -> int:
        return self.settings.token("image_token_id", "image_token_index", default=32000)

    @property
    def tile_rows(self) -> int:
        """Rows of a tile: its patches and the tower's class token, less the first by the "default" strategy."""
        model = self.settings.model
        class_token = self.settings.vision.get("model_type", "clip_vision_model") == "clip_vision_model"
        skipped = model.get("vision_feature_select_strategy", "default") == "default"
        return self.grid[0] * self.grid[1] + class_token - skipped

    def plan(self, width: int, height: int, detail: Detail) -> PicturePlan:
        return PicturePlan(PictureShape((self.grid,), height, width), (self.tile_rows,), "high")

"""Gemma 3: every picture is one square, and has newlines around it."""

from typing import Any, ClassVar

from gateway.images.kinds.kind import Kind
from gateway.images.kinds.tiles import given, grid_of, patch_edge, tile_of
from gateway.images.plan import Detail, PicturePlan
from gateway.images.room import Room
from gateway.images.settings import Settings, UnusableProcessor
from jaxengine.architecture.picture import PictureShape


class Gemma3(Kind):
    """Without pan and scan, which transformers does only where a caller asks for it."""

    model_types: ClassVar[tuple[str, ...]] = ("gemma3",)
    processors: ClassVar[dict[str, str]] = {"Gemma3ImageProcessor": "gemma3"}
    default: ClassVar[str] = "Gemma3ImageProcessor"

    def __init__(self, settings: Settings, room: Room) -> None:
        super().__init__(settings, room)
        self.patch = patch_edge(settings, 16)
        self.grid = grid_of(tile_of(settings.image, {"height": 224, "width": 224}, square=True), self.patch)
        self.rows = int(given(settings.processor, "image_seq_length", 256))
        if self.rows != (known := settings.model.get("mm_tokens_per_image", 256)):
            raise UnusableProcessor(f"processor_config.json: image_seq_length must be {known}, as in config.json")
        self.begin = settings.spelling("boi_token", "<start_of_image>")
        self.end = settings.spelling("eoi_token", "<end_of_image>")

    @property
    def token(self) -> int:
        return self.settings.token("image_token_id", "image_token_index", default=262144)

    def placeholder(self, spelled: str) -> str:
        return self.begin

    def plan(self, width: int, height: int, detail: Detail) -> PicturePlan:
        pieces = (f"\n\n{self.begin}", self.rows, f"{self.end}\n\n")
        return PicturePlan(PictureShape((self.grid,), height, width), pieces, "high")

    def arguments(self, plan: PicturePlan) -> dict[str, Any]:
        return {"do_convert_rgb": True, "do_pan_and_scan": False}

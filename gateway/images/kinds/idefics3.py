"""Idefics3 and SmolVLM: a picture is enlarged to whole tiles, each with its name in the prompt, and shown whole."""

import math
from typing import Any, ClassVar, Literal

from gateway.images.kinds.kind import Kind
from gateway.images.kinds.tiles import given, grid_of, patch_edge
from gateway.images.plan import Detail, PicturePlan, Piece
from gateway.images.room import Room
from gateway.images.settings import Settings, UnusableProcessor, size_of
from jaxengine.architecture.picture import PictureShape

LONGEST = 4096  # pixels that a side has at most before it is cut into tiles, whatever the settings say


class Idefics3(Kind):
    model_types: ClassVar[tuple[str, ...]] = ("idefics3", "smolvlm")
    processors: ClassVar[dict[str, str]] = {"Idefics3ImageProcessor": "idefics3", "SmolVLMImageProcessor": "smolvlm"}
    default: ClassVar[str] = "Idefics3ImageProcessor"
    nested: ClassVar[bool] = True

    def __init__(self, settings: Settings, room: Room) -> None:
        super().__init__(settings, room)
        image = settings.image
        self.patch, self.refused = patch_edge(settings, 32), ("<video>",)
        self.size = size_of(given(image, "size", {"longest_edge": 4 * 364}), square=True)
        self.edge = _edge(image.get("max_image_size"))
        self.splits = image.get("do_image_splitting") is not False
        self.resizes = image.get("do_resize") is not False
        self.grid = grid_of((self.edge, self.edge), self.patch)
        self.tile_rows = int(given(settings.processor, "image_seq_len", 169))
        made = (self.grid[0] // int(given(settings.model, "scale_factor", 2))) ** 2
        if made != self.tile_rows:
            raise UnusableProcessor(f"processor_config.json: image_seq_len must be {made}, which the model makes")
        self.fake = settings.spelling("fake_image_token", "<fake_token_around_image>")
        self.whole = settings.spelling("global_image_token", "<global-img>")

    @property
    def token(self) -> int:
        return self.settings.token("image_token_id", default=128257)

    def plan(self, width: int, height: int, detail: Detail) -> PicturePlan:
        chosen: Literal["low", "high"] = "high" if self.splits and detail != "low" else "low"
        down, across = self._tiles(height, width) if chosen == "high" else (0, 0)
        shape = PictureShape((self.grid,) * (1 + down * across), height, width)
        return PicturePlan(shape, tuple(self._pieces(down, across)), chosen)

    def arguments(self, plan: PicturePlan) -> dict[str, Any]:
        return {"do_image_splitting": plan.detail == "high", "max_image_size": {"longest_edge": self.edge}}

    def _tiles(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles; none if the picture fits into one, which is then the whole picture."""
        if self.resizes:
            height, width = resized(height, width, self.size)
        down, across = covering(height, width, self.edge)
        return (down, across) if down > 1 or across > 1 else (0, 0)

    def _pieces(self, down: int, across: int) -> list[Piece]:
        pieces: list[Piece] = []
        for row in range(1, down + 1):
            for column in range(1, across + 1):
                pieces += [f"{self.fake}<row_{row}_col_{column}>", self.tile_rows]
            pieces.append("\n")
        if pieces:
            pieces.append("\n")
        return [*pieces, f"{self.fake}{self.whole}", self.tile_rows, self.fake]


def _edge(value: Any) -> int:
    edge = {"longest_edge": 364} if value is None else value
    if isinstance(edge, dict) and isinstance(found := edge.get("longest_edge"), int) and found > 0:
        return found
    raise UnusableProcessor(f"preprocessor_config.json: max_image_size must have a longest_edge, not {value!r}")


def resized(height: int, width: int, size: dict[str, int]) -> tuple[int, int]:
    """A picture's height and width once it is as long as `size` says, the other side even, and neither over LONGEST.

    Source: transformers' `get_resize_output_image_size` of Idefics3, its rounding included.
    """
    if "longest_edge" not in size:
        return size["height"], size["width"]
    longest, proportion = size["longest_edge"], width / height
    if width >= height:
        height, width = _even(int(longest / proportion)), longest
    else:
        height, width = longest, _even(int(longest * proportion))
    height, width = max(height, 1), max(width, 1)
    proportion = width / height
    if width >= height and width > LONGEST:
        height, width = int(LONGEST / proportion), LONGEST
    elif height > LONGEST:
        height, width = LONGEST, int(LONGEST * proportion)
    return max(height, 1), max(width, 1)


def _even(length: int) -> int:
    return length + length % 2


def covering(height: int, width: int, edge: int) -> tuple[int, int]:
    """How many tiles of `edge` pixels the picture is enlarged to, downwards and across.

    The longer side is rounded up first, and the other one follows it before it is rounded.
    Source: transformers' `resize_for_vision_encoder` of Idefics3.
    """
    proportion = width / height
    if width >= height:
        across = math.ceil(width / edge)
        return math.ceil(int(across * edge / proportion) / edge), across
    down = math.ceil(height / edge)
    return down, math.ceil(int(down * edge * proportion) / edge)

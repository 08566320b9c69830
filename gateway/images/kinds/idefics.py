"""Idefics 1: a picture is resized to the tower's square, whatever its shape, and has one token in the text."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gateway.images.kinds.kind import Kind
from gateway.images.kinds.tiles import given, grid_of, patch_edge, patches_of, tile_of
from gateway.images.plan import Detail, PicturePlan
from gateway.images.room import Room
from gateway.images.settings import Settings, UnusableProcessor
from jaxengine.architecture.picture import PictureShape

IMAGE, FAKE = "<image>", "<fake_token_around_image>"  # as transformers' processor has them, whatever a file says


class Idefics(Kind):
    """Layers of the text model attend to a picture, so its token is no row."""

    model_types: ClassVar[tuple[str, ...]] = ("idefics",)
    processors: ClassVar[dict[str, str]] = {"IdeficsImageProcessor": "idefics"}
    default: ClassVar[str] = "IdeficsImageProcessor"

    def __init__(self, settings: Settings, room: Room) -> None:
        super().__init__(settings, room)
        edge = given(settings.image, "image_size", given(settings.image, "size", 224))
        self.patch = patch_edge(settings, 14)
        self.tile = tile_of({**settings.image, "size": edge}, edge, square=True)
        self.grid = grid_of(self.tile, self.patch)
        known = settings.vision.get("image_size", 224)
        if self.tile != (known, known):
            raise UnusableProcessor(f"preprocessor_config.json: image_size must be {known}, as in config.json")
        self.bos = settings.spelling("bos_token", "<s>")

    @property
    def token(self) -> int:
        """If config.json does not tell, it is the second of the ids that were added to the vocabulary."""
        return self.settings.token("image_token_id", default=1 + int(given(self.settings.model, "vocab_size", 32000)))

    def placeholder(self, spelled: str) -> str:
        if spelled != IMAGE:
            raise UnusableProcessor(f"tokenizer.json: id {self.token} must be {IMAGE}, not {spelled}")
        return spelled

    def join(self, parts: Sequence[str], pictures: Sequence[str]) -> tuple[bool, str]:
        """As transformers' processor joins a list of texts and pictures: texts lose the spaces around them, and of two
        marks that meet one is left.
        """
        first, *texts = parts
        whole = first.strip(" ")
        for i, (picture, text) in enumerate(zip(pictures, texts, strict=True)):
            whole += (picture.removeprefix(FAKE) if i and not parts[i] else picture) + text.strip(" ")
        return True, whole if whole.startswith(self.bos) else self.bos + whole

    def plan(self, width: int, height: int, detail: Detail) -> PicturePlan:
        return PicturePlan(PictureShape((self.grid,), height, width), (FAKE, 1, FAKE), "high")

    def flatten(self, processed: Mapping[str, Any], plan: PicturePlan) -> np.ndarray:
        return patches_of([*np.asarray(processed)], plan.shape.tiles, self.patch)

"""A checkpoint's processor of pictures: what a picture costs, from its size alone, and its patches, from its pixels.

The gateway counts: `plan` is arithmetic over width and height, so that a prompt is measured and refused before anything
is decoded. The helper process, which decodes, calls `load` once and then `patches`: those are transformers' own, of its
processors over Pillow and NumPy. Only there is transformers imported. What either says of a picture agrees, which
`patches` checks and tests/gateway/images proves for every kind.
"""

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from gateway.images.kinds import kind_of
from gateway.images.kinds.kind import Kind
from gateway.images.plan import Detail, PicturePlan
from gateway.images.room import Room
from gateway.images.settings import Settings

MOST_PIXELS_TO_ONE = 200  # of a side to the other, as Qwen's processor has it: what is longer becomes no picture


class ImageProcessor:
    """Pictures for one checkpoint. Safe to use from several threads, `load` and `patches` aside."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.token = kind.token
        made_of = kind.settings.canonical + repr(kind.room).encode()
        self.fingerprint = hashlib.sha256(made_of).digest()  # 32 bytes: of all that says what becomes of pixels

    @classmethod
    def open(cls, directory: Path, room: Room = Room()) -> "ImageProcessor":
        """The processor of the checkpoint in `directory`, by its JSON files, for an engine with `room`.

        Raises:
            UnusableProcessor: its kind, or one of its settings, is not served, or the engine has no room for its
                pictures; a ValueError that says what to change.
            ValueError: a file cannot be read.
        """
        settings = Settings.read(directory)
        return cls(kind_of(settings, room))

    def plan(self, width: int, height: int, detail: Detail = "auto") -> PicturePlan:
        """How a picture of `width` × `height` pixels, upright, is cut and worded.

        Args:
            detail: OpenAI's. "low" is one tile or fewer pixels, where the model has such a choice; "high" is what the
                checkpoint says, within the engine's room where the kind can; "auto" is that, or "low" where only that
                fits.

        Raises:
            ValueError: such a picture cannot be served; the message says what of it, and the limit.
        """
        if min(width, height) < 1:
            raise ValueError(f"an image must have pixels, got {width} x {height}")
        if max(width, height) > MOST_PIXELS_TO_ONE * min(width, height):
            raise ValueError(
                f"an image's longer side may be at most {MOST_PIXELS_TO_ONE} times the other, got {width} x {height}"
            )
        plan = self.kind.plan(width, height, detail)
        if detail == "auto" and not self.kind.room.holds(plan):
            return self.kind.plan(width, height, "low")
        return plan

    def load(self) -> None:
        """Import what `patches` needs, which takes seconds. For the helper process, before it forks."""
        self.kind.reference  # noqa: B018 (a cached property)

    def patches(self, picture: Image.Image, plan: PicturePlan) -> np.ndarray:
        """f32 [N, patch_values]: the patches of `picture` in the order of `plan.shape.tiles`. For the helper process.

        A picture is turned as its EXIF orientation says, and converted to RGB, as transformers' `load_image` does.

        Raises:
            ValueError: the picture is not of the size that was planned.
        """
        upright = ImageOps.exif_transpose(picture).convert("RGB")
        if upright.size != (plan.shape.width, plan.shape.height):
            width, height = upright.size
            raise ValueError(f"the image has {width} x {height} pixels, not {plan.shape.width} x {plan.shape.height}")
        patches = self.kind.patches(upright, plan)
        if len(patches) != plan.shape.patches:
            raise ValueError(f"the image became {len(patches)} patches, {plan.shape.patches} were planned")
        return patches

"""What a kind of image processor must do. Only the helper process calls `patches`."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from gateway.images.kinds.tiles import patches_of
from gateway.images.plan import Detail, PicturePlan
from gateway.images.room import Room
from gateway.images.settings import Settings, UnusableProcessor


class Kind(ABC):
    """One family of processors, with a checkpoint's settings.

    Class fields:
        model_types: of config.json.
        processors: names of transformers' image processors whose formulas these are, and the module of each.
        default: the processor where no file names one.
        nested: it answers with a list of tiles for each picture, not for all.
    """

    model_types: ClassVar[tuple[str, ...]]
    processors: ClassVar[dict[str, str]]
    default: ClassVar[str]
    nested: ClassVar[bool] = False

    patch: int  # pixels on the side of the tower's patches

    def __init__(self, settings: Settings, room: Room) -> None:
        """Raises UnusableProcessor: a setting is missing, or is not served."""
        self.refused: tuple[str, ...] = ()  # tokens that a request's text must not spell, beside the placeholder
        self.settings, self.room = settings, room
        self.name = self._chosen(settings.image)
        self.given = {key: value for key, value in settings.image.items() if key not in NOT_SETTINGS}

    @classmethod
    def serves(cls, settings: Settings) -> bool:
        return settings.model_type in cls.model_types

    @property
    @abstractmethod
    def token(self) -> int:
        """The id of the token whose embeddings rows replace, as config.json has it."""

    def placeholder(self, spelled: str) -> str:
        """What a chat template writes for a picture; `spelled` is the text of `token`."""
        return spelled

    def inline(self, spelled: str) -> str:
        """What stands for a picture in a text that no template has written."""
        return self.placeholder(spelled)

    def join(self, parts: Sequence[str], pictures: Sequence[str]) -> tuple[bool, str]:
        """Whether it begins with what the tokenizer would put in front, and the whole prompt: `parts` of its text with
        the worded `pictures`, at least one, between them.
        """
        return False, parts[0] + "".join(picture + part for picture, part in zip(pictures, parts[1:], strict=True))

    @abstractmethod
    def plan(self, width: int, height: int, detail: Detail) -> PicturePlan:
        """Within `room` where the kind chooses the size of pictures, or the number of tiles.

        Raises ValueError: the picture cannot be served; the message says the limit.
        """

    def arguments(self, plan: PicturePlan) -> dict[str, Any]:
        """What transformers' processor is called with beside the checkpoint's settings, for this picture."""
        return {}

    def flatten(self, processed: Mapping[str, Any], plan: PicturePlan) -> np.ndarray:
        """What transformers' processor answered for one picture → its patches, f32 [N, patch_values]."""
        pixels = processed["pixel_values"]
        return patches_of(pixels[0] if self.nested else pixels, plan.shape.tiles, self.patch)

    @cached_property
    def reference(self) -> Any:
        """transformers' processor, the one over Pillow and NumPy. Importing it takes seconds."""
        module = self.processors[self.name]
        found = importlib.import_module(f"transformers.models.{module}.image_processing_pil_{module}")
        return getattr(found, f"{self.name}Pil")(**self.given)

    def patches(self, picture: Image.Image, plan: PicturePlan) -> np.ndarray:
        """`picture`, upright and RGB, → f32 [N, patch_values], in the order of `plan.shape.tiles`."""
        processed = self.reference(picture, return_tensors=None, **self.arguments(plan))
        return self.flatten(processed, plan)

    def _chosen(self, image: Mapping[str, Any]) -> str:
        named = str(image.get("image_processor_type") or image.get("feature_extractor_type") or self.default)
        name = named.removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")
        if name not in self.processors:
            known = ", ".join(self.processors)
            raise UnusableProcessor(
                f"preprocessor_config.json: image processor {named} is not served here: {known} are"
            )
        return name


NOT_SETTINGS = frozenset({"image_processor_type", "feature_extractor_type", "processor_class", "auto_map"})

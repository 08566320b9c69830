"""transformers' processors of the tiny models that see: ids and patches of a prompt with pictures."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from gateway.images.processor import ImageProcessor
from gateway.images.prompt import PromptWriter
from gateway.text.tokenizer import Tokenizer
from tests.gateway.images.models import directory
from tests.tiny_vision_prompts import kind_of
from tests.vision_references import IMAGE_OPTIONS, processor_of


@dataclass(frozen=True)
class Sides:
    """One checkpoint, read by the gateway and by transformers."""

    processor: ImageProcessor
    writer: PromptWriter
    reference: Any

    @classmethod
    def of(cls, target: Path, name: str) -> "Sides":
        processor = ImageProcessor.open(target)
        images = transformers.AutoImageProcessor.from_pretrained(target)
        writer = PromptWriter(processor, Tokenizer.load(target))
        return cls(processor, writer, processor_of(target, name, images))

    def ids(self, text: str, pictures: Sequence[Image.Image], **options: Any) -> list[int]:
        """transformers' for `text`."""
        found = self.reference(text=[text], images=[list(pictures)], return_tensors="pt", **options)
        ids: list[int] = found["input_ids"][0].tolist()
        return ids


@functools.cache
def sides(name: str) -> Sides:
    return Sides.of(directory(name), name)


def patches(name: str, picture: Image.Image, patch: int) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Rows and columns of patches of each tile, and the patches, f32 [N, d], that transformers' model would embed."""
    options = IMAGE_OPTIONS.get(kind_of(name), {})
    found = sides(name).reference.image_processor([[picture]], return_tensors="pt", **options)
    if isinstance(found, torch.Tensor):
        found = {"pixel_values": found}
    pixels = found["pixel_values"].float()
    if "image_grid_thw" in found:
        return [tuple(found["image_grid_thw"][0, 1:].tolist())], pixels.numpy()
    tiles = pixels.reshape(-1, *pixels.shape[-3:])  # [T, 3, H, W]
    if "num_tiles" in found:
        tiles = tiles[: found["num_tiles"][0][0]]
    grids, parts = [], []
    masks = found.get("pixel_attention_mask")
    for number, tile in enumerate(tiles):
        whole = torch.ones(tile.shape[1:]) if masks is None else masks[0, number].float()
        seen = torch.nn.functional.avg_pool2d(whole[None], patch)[0] == 1  # patches without a pixel of padding
        squares = torch.nn.functional.unfold(tile[None], patch, stride=patch)[0].T
        grids.append((int(seen[:, 0].sum()), int(seen[0].sum())))
        parts.append(squares[seen.flatten()])
    return grids, torch.cat(parts).numpy()

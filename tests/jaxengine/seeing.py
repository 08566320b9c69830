"""Prompts with pictures for the engine, as transformers' processors write them, and what transformers makes of them."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pictures

from jaxengine.architecture.picture import places_of
from jaxengine.architecture.vision import Vision
from jaxengine.engine.engine import Engine
from jaxengine.request.event import Token
from jaxengine.request.image import Image
from jaxengine.request.sequence import Request
from tests.jaxengine.engines import ask, load
from tests.tiny_vision import IMAGE, VOCAB
from tests.vision_references import Reference, mark

Picture = Pictures.Image

TOLERANCE = 1e-3


def load_seeing(directory: Path, **options: object) -> Engine:
    """An engine with few buckets, whose largest picture is small."""
    chosen: dict[str, Any] = {"max_image_patches": 64, "max_total_tokens": 128, "max_top_logprobs": VOCAB, **options}
    return load(directory, **chosen)


@dataclass(frozen=True, eq=False)
class SeenPrompt:
    """Ids, the pictures in them, and these as the engine is given them."""

    reference: Reference
    ids: list[int]
    pictures: list[Picture]
    images: tuple[Image, ...]

    @classmethod
    def of(cls, reference: Reference, vision: Vision, text: str, pictures: Sequence[Picture]) -> "SeenPrompt":
        """`text` has `{}` where a picture stands."""
        ids = reference.prompt(text.replace("{}", mark(reference.name)), pictures)
        places, images = [i for i, id in enumerate(ids) if id == IMAGE], []
        for picture in pictures:
            seen = reference.see(picture)
            own, places = places[: (rows := places_of(vision, seen.shape))], places[rows:]
            digest = hashlib.sha256(seen.patches.tobytes()).digest()
            images.append(Image(digest, own[0], own[-1] - own[0] + 1, seen.shape, seen.patches))
        assert not places
        return cls(reference, ids, [*pictures], tuple(images))

    def ask(self, number: int, **params: Any) -> Request:
        return replace(ask(number, self.ids, **params), images=self.images)

    def logprobs(self, tokens: int, answered: Sequence[int] = ()) -> np.ndarray:
        """transformers' behind every id of prompt and answer: f32 [ids, tokens], of the ids that are tokens."""
        logits = self.reference.logits([*self.ids, *answered], self.pictures, len(self.ids))[:, :tokens]
        return torch.from_numpy(logits).log_softmax(-1).numpy()


def logprob_rows(tokens: Iterable[Token]) -> np.ndarray:
    """The log-probabilities of all ids at each of `tokens`, f32 [tokens, ids]."""
    return np.array([[value for _, value in sorted(token.top)] for token in tokens], np.float32)

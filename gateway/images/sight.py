"""How the served model sees: what pictures cost and how prompts word them, and what the engine is sent of them."""

import asyncio
import hashlib
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from gateway.engine.images import check_bytes, image_to, patch_bytes
from gateway.errors import RequestError
from gateway.http.encoding import in_thread
from gateway.images.acquisition import Acquisition
from gateway.images.header import read_header
from gateway.images.helper import PictureHelper
from gateway.images.patch_cache import PatchCache
from gateway.images.picture import Picture, Placed, ReadPrompt, Source, about
from gateway.images.processor import ImageProcessor
from gateway.images.prompt import PromptWriter
from gateway.text.model_text import ModelText
from gateway.text.tokenizer import TokenSpan
from jaxengine.rpc import engine_pb2 as pb

Result = TypeVar("Result")

LARGE = 1 << 20  # bytes, which take a millisecond to copy


class Sight:
    """That of one model. From a picture's header alone follows what it costs, so prompts are refused before anything is
    decoded; what is decoded is decoded by the helper.

    Args:
        earlier: pictures, none of which is decoded again.
        most: pictures of a prompt.
        max_pixels: of a picture.
    """

    def __init__(
        self,
        processor: ImageProcessor,
        model: ModelText,
        description: pb.Description,
        files: Acquisition,
        helper: PictureHelper,
        earlier: PatchCache,
        *,
        most: int,
        max_pixels: int,
    ) -> None:
        self._processor, self._model, self._description = processor, model, description
        self._files, self._helper, self._earlier = files, helper, earlier
        self.most, self._max_pixels = most, max_pixels
        self._writer = PromptWriter(processor, model.tokenizer)
        self.placeholder = self._writer.inline  # for a picture in a text that no template writes

    def check_count(self, sources: Sequence[Source], field: str) -> None:
        """Raises RequestError if these are too many for one prompt."""
        if len(sources) > self.most:
            raise RequestError.invalid(f"{field} holds more than {self.most} images (--max-images)", field)

    def refuse_spelled(self, text: str, field: str) -> None:
        """Raises RequestError if `text`, a client's, spells what stands for a picture in prompts."""
        if (spelled := self._writer.refused(text)) is not None:
            raise RequestError.invalid(f"{field} must not spell {spelled}, which stands for an image", field)

    def is_spelled(self, text: str) -> bool:
        """Whether `text` spells what stands for a picture."""
        return self._writer.refused(text) is not None

    def refuse_id(self, ids: Sequence[int], field: str) -> None:
        """Raises RequestError if `ids`, a client's, hold the token of pictures."""
        if self._processor.token in ids:
            message = f"{field} holds the token id {self._processor.token}, which stands for an image"
            raise RequestError.invalid(message, field)

    async def look(self, sources: Sequence[Source]) -> list[Picture]:
        """The pictures, acquired together. Raises RequestError for the first that cannot be served."""
        pictures = await _together(map(self._look, sources))
        if pictures:
            with about(sources[0].field):
                check_bytes(self._description, sum(each.plan.shape.patches for each in pictures))
        if pictures and self._description.image_horizon == "prompt":  # its images are encoded together
            plans = [each.plan for each in pictures]
            with about(sources[0].field):
                self._check_size(sum(plan.shape.patches for plan in plans), sum(plan.rows for plan in plans))
        return pictures

    async def _look(self, source: Source) -> Picture:
        with about(source.field):
            file = await self._files.file(source.url)
            header = read_header(file, self._max_pixels)
            plan = self._processor.plan(header.width, header.height, source.detail)
            self._check_size(plan.shape.patches, plan.rows)
        return Picture(source.field, file, header, plan)

    def _check_size(self, patches: int, rows: int) -> None:
        """Check that the engine has room for a picture. Raises ValueError."""
        for given, most, what in (
            (patches, self._description.max_image_patches, "patches"),
            (rows, self._description.max_image_tokens, "tokens"),
        ):
            if most and given > most:
                raise ValueError(f"images have {given} {what}, at most {most} are read: send smaller ones")

    def adds_special_tokens(self, text: str) -> bool:
        """Whether tokens that begin a text belong before `text`, which a chat template has written."""
        return self._writer.adds_special_tokens(text, self._model.special_tokens.get("bos_token"))

    async def prompt(self, text: str, pictures: Sequence[Picture], *, special: bool, field: str) -> ReadPrompt:
        """The prompt of `text`, in which a placeholder stands for each of `pictures`. Raises RequestError."""
        with about(field):
            written = self._writer.write(text, [each.plan for each in pictures], add_special_tokens=special)
            ids = await self._model.encode(written.text, add_special_tokens=written.add_special_tokens, field=field)
            made = written.prompt(ids)
        placed = (Placed(picture, span) for picture, span in zip(pictures, made.spans, strict=True))
        return ReadPrompt(made.ids, tuple(placed))

    async def spans(
        self, text: str, pictures: Sequence[Picture], *, special: bool, field: str
    ) -> tuple[str, list[TokenSpan]]:
        """What `prompt` tokenises, and its tokens: all tokens of a row of placeholders lie at the one that is written.
        Raises RequestError.
        """
        with about(field):
            written = self._writer.write(text, [each.plan for each in pictures], add_special_tokens=special)
            spans = await self._model.spans(written.text, add_special_tokens=written.add_special_tokens, field=field)
            written.prompt([each.id for each in spans])
        runs = (run for each in written.runs for run in each)
        token = self._processor.token
        return written.text, [each for each in spans for _ in range(next(runs) if each.id == token else 1)]

    def patch_bytes(self, picture: Picture) -> int:
        """Of what the engine is sent of it."""
        return patch_bytes(self._description, picture.plan.shape.patches)

    async def images(self, placed: Sequence[Placed], salt: bytes) -> list[pb.Image]:
        """What the engine is sent of them: of equal pictures one is decoded, if not one of earlier requests. Raises
        RequestError.

        `salt` is the caller's. Equal pictures of callers with different salts are different ones to the engine, whose
        answer comes sooner where it has seen a picture before.
        """
        digests = [
            await in_thread(partial(self._digest, each.picture, salt), when=len(each.picture.file) > LARGE)
            for each in placed
        ]
        different = {digest: each.picture for digest, each in zip(digests, placed, strict=True)}
        made = dict(zip(different, await _together(map(self._patches, different.items())), strict=True))
        dtype = self._description.patch_dtype
        return [
            image_to(digest, each.span.offset, each.span.length, each.picture.plan.shape, made[digest], dtype)
            for digest, each in zip(digests, placed, strict=True)
        ]

    async def _patches(self, named: tuple[bytes, Picture]) -> bytes:
        digest, picture = named
        if (known := self._earlier.get(digest)) is not None:
            return known
        plan, width = picture.plan, self._description.patch_values
        with about(picture.field):
            made = await self._helper.patches(picture.file, picture.header, (plan.shape.patches, width), plan.detail)
        patches = await in_thread(made.tobytes, when=made.nbytes > LARGE)
        self._earlier.put(digest, patches)
        return patches

    def _digest(self, picture: Picture, salt: bytes) -> bytes:
        """Names what the engine makes of a picture: 32 bytes."""
        digest = hashlib.sha256(len(salt).to_bytes(4, "big") + salt + self._processor.fingerprint)
        digest.update(picture.plan.detail.encode() + b"\0")
        digest.update(picture.file)
        return digest.digest()


async def _together(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results of `works`, done at once. Raises the exception of the first that fails; none goes on then."""
    tasks = [asyncio.create_task(each) for each in works]
    try:
        return [await task for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

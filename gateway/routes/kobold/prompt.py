"""The ids of a prompt, cut to the room that is left for it: from the left, as the end is what a text goes on from."""

from collections.abc import Collection
from dataclasses import replace
from itertools import takewhile

from gateway.errors import Kind, RequestError
from gateway.images.picture import ReadPrompt
from gateway.request.gateway_state import Gateway
from gateway.routes.kobold.schemas import GenerateBody
from gateway.text.model_text import ModelText

LEAST = 4  # tokens of the prompt proper that even the longest memory leaves room for, as in KoboldCpp


async def read_prompt(gateway: Gateway, model: ModelText, body: GenerateBody, room: int) -> ReadPrompt:
    """At most `room` ids: the special tokens around every text, the memory, the images and the end of the prompt. Of a
    memory that is too long itself, the end is left; images are never cut. Raises RequestError.
    """
    images = await _images(gateway, body)
    first, name = (body.memory, "memory") if body.memory else (body.prompt, "prompt")
    ids = await model.encode(first, add_special_tokens=True, field=name, cut="left")
    before, own, after = _unwrapped(ids, model.tokenizer.wrapping_ids)
    room -= len(before) + len(after) + len(images.ids)
    if images.ids and room < LEAST:
        message = f"images have {len(images.ids)} tokens, which leaves no room for the prompt (max_context_length)"
        raise RequestError(Kind.CONTEXT_LENGTH, message, param="images")
    if not body.memory:
        return _behind(before, images, _end(own, room) + after)
    prompt = await model.encode(body.prompt, add_special_tokens=False, field="prompt", cut="left")
    kept = _end(own, room - LEAST)
    return _behind(before + kept, images, _end(prompt, room - len(kept)) + after)


async def _images(gateway: Gateway, body: GenerateBody) -> ReadPrompt:
    """The images of the body as a part of a prompt."""
    sources = body.sources
    sight = gateway.pictures.seeing(sources, "images") if sources else gateway.pictures.sight
    if sight is None:
        return ReadPrompt([])
    sight.refuse_spelled(body.memory, "memory")
    sight.refuse_spelled(body.prompt, "prompt")
    pictures = await sight.look(sources)
    if not pictures:
        return ReadPrompt([])
    return await sight.prompt(sight.placeholder * len(pictures), pictures, special=False, field="images")


def _behind(before: list[int], images: ReadPrompt, after: list[int]) -> ReadPrompt:
    """`images` between the ids before and after them."""
    placed = [replace(each, span=replace(each.span, offset=each.span.offset + len(before))) for each in images.placed]
    return ReadPrompt([*before, *images.ids, *after], tuple(placed))


def _unwrapped(ids: list[int], wrapping: Collection[int]) -> tuple[list[int], list[int], list[int]]:
    """The special tokens in front of a text, the text, and those behind it."""
    front = len(list(takewhile(wrapping.__contains__, ids)))
    back = len(list(takewhile(wrapping.__contains__, reversed(ids[front:]))))
    return ids[:front], ids[front : len(ids) - back], ids[len(ids) - back :]


def _end(ids: list[int], count: int) -> list[int]:
    """At most the last `count` of `ids`."""
    return ids[-count:] if count > 0 else []

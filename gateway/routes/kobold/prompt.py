"""The ids of a prompt, cut to the room that is left for it: from the left, as the end is what a text goes on from."""

from collections.abc import Collection
from itertools import takewhile

from gateway.routes.kobold.schemas import GenerateBody
from gateway.text.model_text import ModelText

LEAST = 4  # tokens of the prompt proper that even the longest memory leaves room for, as in KoboldCpp


async def prompt_ids(model: ModelText, body: GenerateBody, room: int) -> list[int]:
    """At most `room` ids: the special tokens around every text, the memory and the end of the prompt. Of a memory that
    is too long itself, the end is left.
    """
    first, name = (body.memory, "memory") if body.memory else (body.prompt, "prompt")
    ids = await model.encode(first, add_special_tokens=True, field=name, cut="left")
    before, own, after = _unwrapped(ids, model.tokenizer.wrapping_ids)
    room -= len(before) + len(after)
    if not body.memory:
        return before + _end(own, room) + after
    prompt = await model.encode(body.prompt, add_special_tokens=False, field="prompt", cut="left")
    kept = _end(own, room - LEAST)
    return before + kept + _end(prompt, room - len(kept)) + after


def _unwrapped(ids: list[int], wrapping: Collection[int]) -> tuple[list[int], list[int], list[int]]:
    """The special tokens in front of a text, the text, and those behind it."""
    front = len(list(takewhile(wrapping.__contains__, ids)))
    back = len(list(takewhile(wrapping.__contains__, reversed(ids[front:]))))
    return ids[:front], ids[front : len(ids) - back], ids[len(ids) - back :]


def _end(ids: list[int], count: int) -> list[int]:
    """At most the last `count` of `ids`."""
    return ids[-count:] if count > 0 else []

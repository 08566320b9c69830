"""What requests hold of their images is bounded, whatever becomes of them."""

import asyncio
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest

from gateway.errors import Kind, RequestError
from gateway.images.memory import ImageMemory
from gateway.request.images import FILE_COPIES
from tests.gateway.fixtures import serve
from tests.gateway.seeing import ToyHelper, data_url, png

CHAT = "/v1/chat/completions"
FILE = png()
IMAGE = {"type": "image_url", "image_url": {"url": data_url(FILE)}}


def asking(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts]}], "max_tokens": 2, **fields}


def test_one_is_let_in_however_large_and_others_while_there_is_room() -> None:
    memory = ImageMemory(10)
    with memory.hold(11), pytest.raises(RequestError) as caught, memory.hold(1):
        pass
    assert (
        caught.value.kind is Kind.OVERLOADED and caught.value.retry_after and "--max-image-memory" in str(caught.value)
    )
    with memory.hold(4), memory.hold(6):
        assert memory.held == 10
    assert memory.held == 0


def test_of_earlier_pictures_those_that_were_used_last_are_kept_in_what_requests_leave() -> None:
    memory = ImageMemory(80)
    earlier = memory.earlier
    for name in (b"a", b"b", b"c"):
        earlier.put(name, bytes(4))
        earlier.get(b"a")
    assert [earlier.get(name) is None for name in (b"a", b"b", b"c")] == [False, True, False]
    earlier.put(b"too large", bytes(11))
    assert earlier.size == 8
    with memory.hold(74):
        assert earlier.size == 4 and earlier.get(b"c") is not None
        earlier.put(b"d", bytes(4))
        assert earlier.size == 4 and earlier.get(b"d") is not None
        with memory.hold(6):
            earlier.put(b"e", bytes(1))
            assert earlier.size == 0
    with memory.hold(81):
        pass
    earlier.put(b"f", bytes(10))
    assert earlier.size == 10


async def test_a_picture_of_an_earlier_turn_is_not_decoded_again() -> None:
    """But for another caller, who must not learn of it by how soon an answer comes."""
    async with serve(sees="llava_next", max_total_tokens=2048) as app:
        assert app.gateway.pictures.sight is not None
        helper = app.gateway.pictures._helper
        assert isinstance(helper, ToyHelper)
        new = {"type": "image_url", "image_url": {"url": data_url(png(seed=1))}}
        for parts, decoded in (([IMAGE], 1), ([IMAGE, new], 2), ([new, IMAGE], 2)):
            answer = await app.post(CHAT, asking(*parts))
            assert (answer.status_code, helper.decoded) == (200, decoded), answer.text
        first, *_, last = app.engine.requests
        assert last.images[1].patches == first.images[0].patches and last.images[1].digest == first.images[0].digest
        await app.post(CHAT, asking(IMAGE, cache_salt="another"))
        assert helper.decoded == 3


async def test_a_request_beyond_is_a_429_and_texts_are_answered() -> None:
    async with serve(sees="llava_next", max_total_tokens=512, max_image_memory=1) as app:
        with app.gateway.pictures.memory.hold(1):
            refused = await app.post(CHAT, asking(IMAGE))
            assert refused.status_code == 429 and refused.headers["retry-after"]
            assert "--max-image-memory" in refused.json()["error"]["message"]
            assert (await app.post(CHAT, asking({"type": "text", "text": "a"}))).status_code == 200
            assert not any(each.images for each in app.engine.requests) and app.gateway.admission.active == 0
        assert (await app.post(CHAT, asking(IMAGE))).status_code == 200


async def test_every_choice_counts_with_its_patches_and_the_body_once(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    async with serve(sees="llava_next", max_total_tokens=512) as app:
        memory = app.gateway.pictures.memory
        hold = memory.hold

        def noted(size: int) -> AbstractContextManager[None]:
            held.append(size)
            return hold(size)

        monkeypatch.setattr(memory, "hold", noted)
        for choices in (1, 3):
            answer = await app.post(CHAT, asking(IMAGE, IMAGE, n=choices, temperature=1))
            assert answer.status_code == 200, answer.text
        patches = sum(len(image.patches) for image in app.engine.requests[0].images)
        assert held == [2 * FILE_COPIES * len(FILE) + choices * patches for choices in (1, 3)]
        assert memory.held == 0


@pytest.mark.parametrize("end", [asyncio.CancelledError, RequestError(Kind.INVALID, "damaged"), ValueError("a bug")])
async def test_it_is_given_back_however_a_request_ends(end: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(sees="llava_next", max_total_tokens=512) as app:
        sight, memory = app.gateway.pictures.sight, app.gateway.pictures.memory

        async def fails(*_: object) -> None:
            assert memory.held > 0
            raise end

        monkeypatch.setattr(sight, "images", fails)
        with suppress(asyncio.CancelledError):
            assert (await app.post(CHAT, asking(IMAGE))).status_code in (400, 500)
        assert memory.held == 0

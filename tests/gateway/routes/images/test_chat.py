"""Images in chats: which ids and patches the engine gets, and what is refused."""

from typing import Any

import pytest

from gateway.images.pictures import BLIND
from tests.gateway.fixtures import ServedApp, events, serve
from tests.gateway.seeing import IMAGE, data_url, number_of, picture, png, reference_ids, shown

MARK = "<image>"
CHAT = "/v1/chat/completions"
SIZES = ((64, 40), (40, 90))
PICTURES = [picture(*size, seed) for seed, size in enumerate(SIZES)]
URLS = [data_url(png(*size, seed)) for seed, size in enumerate(SIZES)]


def image(number: int, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": URLS[number], **fields}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def for_transformers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same chat with Pillow's images."""

    def part(given: dict[str, Any]) -> dict[str, Any]:
        if given["type"] == "text":
            return given
        return {"type": "image", "image": PICTURES[URLS.index(given["image_url"]["url"])]}

    def content(given: Any) -> Any:
        return [text(given)] if isinstance(given, str) else [part(each) for each in given]

    return [{**message, "content": content(message["content"])} for message in messages]


CHATS = {
    "text, then an image": user(text("What is in the picture?"), image(0)),
    "an image, then text": user(image(0), text("What?")),
    "two images": user(image(0), text("and"), image(1), text("?")),
    "the same image twice": user(image(1), image(1)),
    "images in two turns": [
        *user(image(1), text("What?")),
        {"role": "assistant", "content": "A dog."},
        *user(text("And here?"), image(0)),
    ],
    "no image": [{"role": "user", "content": "What?"}],
}


@pytest.mark.parametrize("name", ["llava_next", "qwen2_5_vl", "gemma3", "smolvlm", "idefics2", "internvl"])
async def test_the_engine_gets_transformers_ids_and_the_images_in_their_places(name: str) -> None:
    async with serve(sees=name, max_total_tokens=512) as app:
        for messages in CHATS.values():
            answer = await app.post(CHAT, messages=messages, max_tokens=2)
            assert answer.status_code == 200, answer.text
            request = app.engine.requests[-1]
            assert list(request.prompt) == reference_ids(name, for_transformers(messages))
            assert answer.json()["usage"]["prompt_tokens"] == len(request.prompt)
            _check_images(messages, list(request.prompt), shown(request))


def _check_images(messages: list[dict[str, Any]], ids: list[int], images: list[tuple[int, int, float]]) -> None:
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    sent = [URLS.index(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"]
    assert [number for _, _, number in images] == [number_of(PICTURES[each]) for each in sent]
    inside = [at for offset, length, _ in images for at in range(offset, offset + length)]
    assert {at for at, id in enumerate(ids) if id == IMAGE} <= set(inside)
    assert all(ids[offset] == ids[offset + length - 1] == IMAGE for offset, length, _ in images)


@pytest.mark.parametrize("given", [URLS[0], {"url": URLS[0]}, {"url": URLS[0], "detail": "high"}])
async def test_an_image_is_a_url_or_an_object_that_has_one(given: Any) -> None:
    async with serve(sees="llava_next", max_total_tokens=512) as app:
        await app.post(CHAT, messages=user({"type": "image_url", "image_url": given, "uuid": "a"}), max_tokens=2)
        assert [number for _, _, number in shown(app.engine.requests[0])] == [number_of(PICTURES[0])]


async def test_detail_low_costs_fewer_tokens_where_the_model_has_a_choice() -> None:
    async with serve(sees="smolvlm", max_total_tokens=512) as app:
        counts = {}
        for detail in ("low", "high", "auto", "original"):
            answer = await app.post(CHAT, messages=user(image(0, detail=detail)), max_tokens=2)
            counts[detail] = answer.json()["usage"]["prompt_tokens"]
        assert counts["low"] < counts["high"] == counts["auto"] == counts["original"]
        wrong = await app.post(CHAT, messages=user(image(0, detail="best")), max_tokens=2)
        assert wrong.status_code == 400 and "detail" in wrong.json()["error"]["message"]


async def test_images_that_a_user_writes_into_a_text_as_tgi_has_them_are_read() -> None:
    async with serve(sees="qwen2_5_vl", max_total_tokens=512) as app:
        written = f"See ![]({URLS[0]}) and ![](figure.png) and ![]({URLS[1]})"
        apart = user(text("See "), image(0), text(" and ![](figure.png) and "), image(1))
        for messages in ([{"role": "user", "content": written}], user(text(written)), apart):
            await app.post(CHAT, messages=messages, max_tokens=2)
        first, *others = app.engine.requests
        assert [number for _, _, number in shown(first)] == [number_of(each) for each in PICTURES]
        assert all(each.prompt == first.prompt and each.images == first.images for each in others)


async def test_what_others_than_the_user_write_is_text() -> None:
    async with serve(sees="qwen2_5_vl", max_total_tokens=1000) as app:
        for role in ("system", "assistant", "tool"):
            said = {"role": role, "content": "![](data:image/png;base64,YQ==)"}
            answer = await app.post(CHAT, messages=[said, {"role": "user", "content": "a"}], max_tokens=2)
            assert answer.status_code == 200 and not app.engine.requests[-1].images


@pytest.mark.parametrize("role", ["system", "user", "tool"])
async def test_whoever_a_template_shows_may_bring_images(role: str) -> None:
    messages = [{"role": role, "content": [text("a"), image(0)]}, {"role": "user", "content": "b"}]
    async with serve(sees="qwen2_5_vl", max_total_tokens=512) as app:
        answer = await app.post(CHAT, messages=messages, max_tokens=2)
        assert answer.status_code == 200, answer.text
        assert [number for _, _, number in shown(app.engine.requests[0])] == [number_of(PICTURES[0])]


async def test_every_choice_sees_the_images() -> None:
    async with serve(sees="llava_next", max_total_tokens=512) as app:
        await app.post(CHAT, messages=user(image(0)), n=3, max_tokens=2, temperature=1)
        first, *others = app.engine.requests
        assert len(others) == 2 and all(each.images == first.images for each in others)
        answer = await app.post(CHAT, messages=user(image(0)), n=2, max_tokens=2, use_beam_search=True)
        assert answer.status_code == 200, answer.text
        assert app.engine.requests[-1].images == first.images


async def test_a_stream_counts_the_images_tokens() -> None:
    async with serve(sees="llava_next", max_total_tokens=512) as app:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        response = await app.post(CHAT, messages=user(image(0)), max_tokens=2, **options)
        *_, last, done = events(response)
        assert done == "[DONE]" and last["usage"]["prompt_tokens"] == len(app.engine.requests[0].prompt)


async def test_each_chat_of_a_batch_has_its_own_images() -> None:
    async with serve(sees="llava_next", max_total_tokens=512) as app:
        answer = await app.post(f"{CHAT}/batch", messages=[user(image(0)), user(image(1))], max_tokens=2)
        assert answer.status_code == 200, answer.text
        seen = [number for each in app.engine.requests for _, _, number in shown(each)]
        assert seen == [number_of(each) for each in PICTURES]


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "too many": (
        {"messages": user(*[image(0)] * 5)},
        "messages holds more than 4 images (--max-images)",
        "messages",
    ),
    "too many written": (
        {"messages": [{"role": "user", "content": "![](data:,)" * 50_000}] * 40},  # which takes minutes part by part
        "messages holds more than 4 images (--max-images)",
        "messages",
    ),
    "not fetched": (
        {"messages": user({"type": "image_url", "image_url": "https://example.com/a.png"})},
        "messages[0].content[0].image_url: this server fetches no images (--allowed-media-domains is not set)",
        "messages[0].content[0].image_url",
    ),
    "no picture": (
        {"messages": user(text("a"), {"type": "image_url", "image_url": "data:image/png;base64,aGVsbG8="})},
        "messages[0].content[1].image_url: the image is not a whole PNG",
        "messages[0].content[1].image_url",
    ),
    "no image": (
        {"messages": user({"type": "image_url", "image_url": None, "uuid": "a"})},
        "messages[0].content[0]: a part of type image_url needs an image_url: no image is kept by its uuid",
        "messages[0].content[0]",
    ),
    "another part": (
        {"messages": user({"type": "video_url", "video_url": {"url": "a"}})},
        "messages[0].content[0]: only parts of types text, input_text, output_text, refusal, with their text, and "
        "image_url are supported",
        "messages[0].content[0]",
    ),
    "a placeholder": (
        {"messages": user(text("a <image>"), image(0))},
        "messages must not spell <image>, which stands for an image",
        "messages",
    ),
    "a placeholder alone": (
        {"messages": [{"role": "user", "content": "a <image>"}]},
        "messages must not spell <image>, which stands for an image",
        "messages",
    ),
    "a placeholder in a tool": (
        {
            "messages": user(image(0)),
            "tools": [{"type": "function", "function": {"name": "f", "description": MARK}}],
        },
        "messages must not spell <image>, which stands for an image",
        "messages",
    ),
    "too long": (
        {"messages": user(*[image(1)] * 4), "max_tokens": 100},
        "This model's maximum context length is 100 tokens",
        "messages",
    ),
    "a template without a place": (
        {"messages": user(image(0)), "chat_template": "{{ messages[0]['content'] }}"},
        "the chat template has no place for images",
        "chat_template",
    ),
    "a template with too many places": (
        {
            "messages": user(image(0)),
            "chat_template": f"{MARK}{{% for p in messages[0].content %}}{MARK}{{% endfor %}}",
        },
        "the chat template has no place for images",
        "chat_template",
    ),
    "cut through": (
        {"messages": user(image(0), text("a")), "truncate_prompt_tokens": 12},
        "truncate_prompt_tokens 12 cuts through an image of the prompt",
        "truncate_prompt_tokens",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_be_read_is_a_400_that_names_it(name: str) -> None:
    body, message, param = REFUSED[name]
    async with serve(sees="llava_next", max_total_tokens=100) as app:
        answer = await app.post(CHAT, {"max_tokens": 2, **body})
        error = answer.json()["error"]
        assert answer.status_code == 400 and message in error["message"], answer.text
        assert error["param"] == param
        assert not app.engine.requests
        await _answers(app)


async def _answers(app: ServedApp) -> None:
    assert (await app.post(CHAT, messages=[{"role": "user", "content": "a"}], max_tokens=2)).status_code == 200
    assert app.gateway.admission.active == 0


@pytest.mark.parametrize(
    ("options", "sees", "why"), [({}, "", BLIND), ({"max_images": 0}, "llava_next", "--max-images")]
)
async def test_a_server_that_does_not_see_refuses_images_and_answers_texts(
    options: dict[str, Any], sees: str, why: str
) -> None:
    async with serve(sees=sees, max_total_tokens=512, **options) as app:
        answer = await app.post(CHAT, messages=user(image(0)), max_tokens=2)
        assert answer.status_code == 400 and why in answer.json()["error"]["message"]
        written = [{"role": "user", "content": "![](data:image/png;base64,a)"}]
        assert (await app.post(CHAT, messages=written, max_tokens=2)).status_code == 200
        await _answers(app)


async def test_what_is_cut_off_brings_no_image() -> None:
    async with serve(sees="llava_next", max_total_tokens=512) as app:
        body = {"messages": user(image(0), text("a b c d e f g h i j k l")), "max_tokens": 2}
        await app.post(CHAT, {**body, "truncate_prompt_tokens": 5})
        await app.post(CHAT, {**body, "truncate_prompt_tokens": 5, "truncation_side": "right"})
        await app.post(CHAT, {**body, "truncate_prompt_tokens": -1})
        assert [len(each.images) for each in app.engine.requests] == [0, 0, 1]


async def test_equal_pictures_of_one_key_are_one_to_the_engine_and_those_of_two_keys_are_not() -> None:
    async with serve(sees="llava_next", max_total_tokens=512, api_key="a\nb") as app:
        for key in "aab":
            headers = {"authorization": f"Bearer {key}"}
            await app.http.post(
                CHAT, json={"messages": user(image(0), image(1), image(0)), "max_tokens": 2}, headers=headers
            )
        first, second, other = ([image.digest for image in each.images] for each in app.engine.requests)
        assert first == second and first[0] == first[2] != first[1]
        assert not set(first) & set(other)


async def test_a_salt_of_the_request_parts_its_pictures_too() -> None:
    async with serve(sees="llava_next", max_total_tokens=512) as app:
        for salt in (None, "a", "b"):
            await app.post(CHAT, messages=user(image(0)), max_tokens=2, cache_salt=salt)
        assert len({each.images[0].digest for each in app.engine.requests}) == 3

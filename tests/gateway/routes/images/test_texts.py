"""Images in prompts that no chat template writes: TGI's notation, Kobold's and Triton's fields, completions."""

import re
from typing import Any

import pytest

from tests.gateway.fixtures import events, serve
from tests.gateway.images.reference import sides
from tests.gateway.seeing import base64_of, data_url, number_of, picture, png, shown
from tests.vision_references import mark

SIZES = ((64, 40), (40, 90))
PICTURES = [picture(*size, seed) for seed, size in enumerate(SIZES)]
FILES = [png(*size, seed) for seed, size in enumerate(SIZES)]
WRITTEN = [f"![]({data_url(file)})" for file in FILES]
NUMBERS = [number_of(each) for each in PICTURES]
NAME = "qwen2_5_vl"
TEXT = "What is in {0}? And in {1} there?"
KSERVE = "/v2/models/ensemble/generate"


def reference(form: str = TEXT, pictures: Any = PICTURES, name: str = NAME) -> list[int]:
    """transformers' ids of a text with a picture in each of its places."""
    return sides(name).ids(form.format(*[mark(name)] * len(pictures)), pictures)


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
@pytest.mark.parametrize("name", [NAME, "llava_next", "pixtral"])
async def test_tgis_notation_is_read_in_inputs(path: str, name: str) -> None:
    async with serve(sees=name, max_total_tokens=512) as app:
        inputs = TEXT.format(*WRITTEN)
        answer = await app.post(path, inputs=inputs, parameters={"max_new_tokens": 2, "details": True})
        assert answer.status_code == 200, answer.text
        [request] = app.engine.requests
        assert list(request.prompt) == reference(name=name)
        assert [number for _, _, number in shown(request)] == NUMBERS
        if path == "/generate":
            assert answer.headers["x-prompt-tokens"] == str(len(request.prompt))
        if path == "/generate_stream":
            assert events(answer)[-1]["details"]["input_length"] == len(request.prompt)
        if path == "/":
            assert answer.json()[0]["generated_text"].startswith(inputs)


async def test_best_of_and_truncate_know_images() -> None:
    async with serve(sees=NAME, max_total_tokens=512) as app:
        inputs = TEXT.format(*WRITTEN)
        asked = {"max_new_tokens": 2, "best_of": 2, "do_sample": True}
        assert (await app.post("/generate", inputs=inputs, parameters=asked)).status_code == 200
        assert all([number for _, _, number in shown(each)] == NUMBERS for each in app.engine.requests)
        whole, last = len(app.engine.requests[0].prompt), app.engine.requests[0].images[-1].offset
        asked = {"max_new_tokens": 2, "truncate": whole - last + 1}
        assert (await app.post("/generate", inputs=inputs, parameters=asked)).status_code == 200
        assert shown(app.engine.requests[-1]) == [(1, app.engine.requests[0].images[-1].length, NUMBERS[1])]
        through = await app.post("/generate", inputs=inputs, parameters={**asked, "truncate": whole - last - 1})
        assert through.status_code == 422 and "cuts through an image" in through.json()["error"]


REFUSED = {
    "![](https://example.com/a.png)": "inputs: this server fetches no images (--allowed-media-domains is not set)",
    "![](a.png)": "inputs: ",
    "![](ftp://a/b.png)": "inputs: ",
    "![](data:text/html;base64,aGVsbG8=)": "inputs: the image's data: URL must be of type",
    "![](data:image/png;base64,@@@@)": "inputs: ",
    "![](data:image/png,abc)": "inputs: ",
    "![]()": "inputs: ",
    " ".join([WRITTEN[0]] * 5): "inputs holds more than 4 images (--max-images)",
    "a <|image_pad|> b": "inputs must not spell <|image_pad|>, which stands for an image",
    f"<|image_pad|>{WRITTEN[0]}": "inputs must not spell <|image_pad|>, which stands for an image",
}


@pytest.mark.parametrize("inputs", REFUSED, ids=[each[:30] for each in REFUSED])
async def test_what_cannot_be_read_is_tgis_422_that_names_it(inputs: str) -> None:
    async with serve(sees=NAME, max_total_tokens=512) as app:
        answer = await app.post("/generate", inputs=inputs, parameters={"max_new_tokens": 2})
        assert answer.status_code == 422 and answer.json()["error_type"] == "validation"
        assert answer.json()["error"].startswith(f"Input validation error: {REFUSED[inputs]}"), answer.text
        assert not app.engine.requests and app.gateway.admission.active == 0


@pytest.mark.parametrize("inputs", ["![a dog](dog.png)", "![](", "![] (a)", "a![", "![](" * 1000])
async def test_other_texts_are_texts(inputs: str) -> None:
    async with serve(sees=NAME, max_total_tokens=5000) as app:
        answer = await app.post("/generate", inputs=inputs, parameters={"max_new_tokens": 2})
        assert answer.status_code == 200, answer.text
        assert not app.engine.requests[0].images


async def test_a_model_that_does_not_see_reads_the_notation_as_text() -> None:
    async with serve(max_total_tokens=5000) as app:
        inputs = "![](data:image/png;base64,aGVsbG8=)"
        assert (await app.post("/generate", inputs=inputs, parameters={"max_new_tokens": 2})).status_code == 200
        assert not app.engine.requests[0].images


async def test_counters_count_the_tokens_of_images() -> None:
    async with serve(sees=NAME, max_total_tokens=512) as app:
        ids = reference()
        tokens = (await app.post("/tokenize", inputs=TEXT.format(*WRITTEN))).json()
        assert [token["id"] for token in tokens] == ids
        chat = {"messages": [{"role": "user", "content": TEXT.format(*WRITTEN)}]}
        counted = (await app.post("/tokenize", chat)).json()
        templated = (await app.post("/chat_tokenize", chat)).json()
        await app.post("/v1/chat/completions", {**chat, "max_tokens": 2})
        [request] = app.engine.requests
        assert counted["tokens"] == list(request.prompt) and counted["count"] == len(request.prompt)
        assert [token["id"] for token in templated["tokenize_response"]] == list(request.prompt)
        assert templated["templated_text"].count("<|image_pad|>") == 2


async def test_koboldcpps_images_stand_behind_the_memory_and_are_never_cut() -> None:
    async with serve(sees=NAME, max_total_tokens=512) as app:
        body = {"prompt": "What is there?", "memory": "a dog\n", "images": [base64_of(FILES[0])], "max_length": 2}
        assert (await app.post("/api/v1/generate", body)).status_code == 200
        [request] = app.engine.requests
        assert list(request.prompt) == reference("a dog\n{0}What is there?", PICTURES[:1])
        assert [number for _, _, number in shown(request)] == NUMBERS[:1]
        body |= {"memory": "", "prompt": "lo " * 300, "max_context_length": 100, "images": [data_url(FILES[1])]}
        assert (await app.post("/api/v1/generate", body)).status_code == 200
        assert len(app.engine.requests[-1].prompt) <= 98
        assert [number for _, _, number in shown(app.engine.requests[-1])] == NUMBERS[1:]
        wrong = await app.post("/api/v1/generate", {**body, "images": ["@"]})
        assert wrong.status_code == 422 or wrong.status_code == 400
        assert "images[0]" in wrong.text


async def test_koboldcpps_images_are_refused_by_name_where_the_model_does_not_see() -> None:
    async with serve() as app:
        answer = await app.post("/api/v1/generate", prompt="a", images=[base64_of(FILES[0])])
        assert answer.status_code in (400, 422) and "images" in answer.text and "reads no images" in answer.text


@pytest.mark.parametrize("form", ["What is {0} and {1}?", "What?"])
async def test_tritons_images_stand_where_the_text_says_or_in_front(form: str) -> None:
    async with serve(sees=NAME, max_total_tokens=512) as app:
        text = form.format(*[mark(NAME)] * 2)
        body = {"text_input": text, "image": [base64_of(file) for file in FILES], "max_tokens": 2}
        answer = await app.post(KSERVE, body)
        assert answer.status_code == 200, answer.text
        [request] = app.engine.requests
        assert list(request.prompt) == reference(form if "{0}" in form else "{0}{1}" + form)
        assert [number for _, _, number in shown(request)] == NUMBERS


async def test_tritons_metadata_has_the_input_where_the_model_sees() -> None:
    for sees in ("", NAME):
        async with serve(sees=sees) as app:
            told = (await app.http.get("/v2/models/ensemble")).json()["inputs"]
            assert ("image" in {each["name"] for each in told}) is bool(sees)


async def test_triton_refuses_images_that_do_not_fit_the_text_or_the_model() -> None:
    async with serve(sees=NAME, max_total_tokens=512) as app:
        answer = await app.post(KSERVE, text_input=mark(NAME) * 2, image=base64_of(FILES[0]), max_tokens=2)
        assert answer.status_code == 400 and "2 places for images, and there are 1" in answer.json()["error"]
    async with serve() as app:
        answer = await app.post(KSERVE, text_input="a", image=base64_of(FILES[0]), max_tokens=2)
        assert answer.status_code == 400 and "image" in answer.json()["error"]


@pytest.mark.parametrize("prompt", ["a <|image_pad|>", [5, 300, 6]])
async def test_a_completion_cannot_spell_an_image(prompt: Any) -> None:
    async with serve(sees=NAME, max_total_tokens=512) as app:
        answer = await app.post("/v1/completions", prompt=prompt, max_tokens=2)
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == "prompt"
        assert re.search("stands for an image", error["message"])


async def test_info_tells_the_limits_of_images_where_the_model_sees() -> None:
    names = {"max_images", "max_image_size", "max_image_pixels", "image_payload_limit"}
    async with serve(sees=NAME, max_images=3) as app:
        told = (await app.http.get("/info")).json()
        assert told["max_images"] == 3 and names <= told.keys()
    async with serve() as app:
        assert not names & (await app.http.get("/info")).json().keys()


async def test_bodies_may_be_larger_where_the_model_sees() -> None:
    text = {"inputs": "a" * 3000, "parameters": {"max_new_tokens": 1}}
    async with serve(sees=NAME, max_total_tokens=4000, payload_limit=1000, image_payload_limit=5000) as app:
        assert (await app.post("/generate", text)).status_code == 200
        larger = await app.post("/generate", {**text, "inputs": "a" * 6000})
        assert larger.status_code == 413 and "longer than 5000 bytes" in larger.json()["error"]
    async with serve(max_total_tokens=4000, payload_limit=1000, image_payload_limit=5000) as app:
        assert (await app.post("/generate", text)).status_code == 413


async def test_only_images_make_use_of_larger_bodies_in_chats() -> None:
    async with serve(sees=NAME, max_total_tokens=4000, payload_limit=1000, image_payload_limit=50_000) as app:
        chat = {"messages": [{"role": "user", "content": "a" * 3000}], "max_tokens": 1}
        refused = await app.post("/v1/chat/completions", chat)
        assert refused.status_code == 400 and "at most 1000 are read (--payload-limit)" in refused.text
        image = {"type": "image_url", "image_url": data_url(FILES[0])}
        chat = {"messages": [{"role": "user", "content": [image]}], "max_tokens": 1}
        assert len(data_url(FILES[0])) > 1000
        assert (await app.post("/v1/chat/completions", chat)).status_code == 200

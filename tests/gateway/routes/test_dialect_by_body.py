"""Routes whose body tells the dialect: `/invocations`, `/tokenize`, `/chat_tokenize`; and vLLM's helper routes."""

from typing import Any

import pytest

from gateway import __version__
from gateway.http.encoding import json_list
from gateway.routes import dialect_by_body
from gateway.routes.openai import tokens as openai_tokens
from tests.gateway.fixtures import Callers, events, serve
from tests.gateway.toys import BOS, IM_END, IM_START, byte_level

BACKEND = byte_level()
CHAT = {"messages": [{"role": "user", "content": "lo"}]}
RENDERED = "<|im_start|>user\nlo<|im_end|>\n<|im_start|>assistant\n"


def ids(text: str) -> list[int]:
    return list(BACKEND.encode(text, add_special_tokens=False).ids)


async def test_invocations_answer_as_the_route_whose_body_they_got() -> None:
    async with serve() as app:
        assert (await app.post("/invocations", inputs="lo ")).text == '[{"generated_text":"lo hello world"}]'
        chat = (await app.post("/invocations", CHAT)).json()
        assert (chat["object"], chat["choices"][0]["message"]["content"]) == ("chat.completion", "hello world")
        completion = (await app.post("/invocations", prompt="lo")).json()
        assert (completion["object"], completion["choices"][0]["text"]) == ("text_completion", "hello world")
        vectors = await app.post("/invocations", input=["lo", "hello"])
        assert vectors.json()["data"] == (await app.post("/v1/embeddings", input=["lo", "hello"])).json()["data"]


async def test_invocations_stream_in_the_bodys_dialect() -> None:
    async with serve() as app:
        assert events(await app.post("/invocations", inputs="lo", stream=True))[-1]["generated_text"]
        assert events(await app.post("/invocations", {**CHAT, "stream": True}))[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("body", "status", "is_openai"),
    [
        ({"inputs": ""}, 422, False),
        ({"inputs": "lo", "messages": 3}, 200, False),
        ({"messages": []}, 400, True),
        ({"prompt": "lo", "n": 0}, 400, True),
        ({"input": "lo", "dimensions": 0}, 400, True),
        ({"text": "lo"}, 422, False),
        ([], 422, False),
    ],
)
async def test_errors_of_invocations_are_in_the_bodys_dialect(body: Any, status: int, is_openai: bool) -> None:
    async with serve() as app:
        response = await app.post("/invocations", body)
        assert response.status_code == status
        if status != 200:
            assert isinstance(response.json()["error"], dict) is is_openai


async def test_tokenize_gives_byte_ranges_of_inputs() -> None:
    async with serve() as app:
        response = await app.post("/tokenize", inputs="hé lo")
        [e1, e2] = ids("é")
        assert response.json() == [
            {"id": BOS, "text": "", "start": 0, "stop": 0},
            {"id": ids("h")[0], "text": "h", "start": 0, "stop": 1},
            {"id": e1, "text": "é", "start": 1, "stop": 3},
            {"id": e2, "text": "é", "start": 1, "stop": 3},
            {"id": ids(" ")[0], "text": " ", "start": 3, "stop": 4},
            {"id": ids("lo")[0], "text": "lo", "start": 4, "stop": 6},
        ]


async def test_tokenize_counts_a_prompt_as_vllm() -> None:
    async with serve() as app:
        answer = (await app.post("/tokenize", prompt="hello")).json()
        assert answer == {"count": 3, "max_model_len": 64, "tokens": [BOS, *ids("hello")], "token_strs": None}
        body = {"prompt": "hello world", "add_special_tokens": False, "return_token_strs": True}
        answer = (await app.post("/tokenize", body)).json()
        spelled = ["hel", "lo", "Ġw", "or", "ld"]  # as the vocabulary has them
        assert (answer["tokens"], answer["token_strs"]) == (ids("hello world"), spelled)


async def test_tokenize_counts_a_chat_as_the_engine_would_get_it() -> None:
    async with serve() as app:
        answer = (await app.post("/tokenize", CHAT)).json()
        await app.post("/v1/chat/completions", CHAT)
        [request] = app.engine.requests
        assert answer["tokens"] == list(request.prompt)
        without = (await app.post("/tokenize", {**CHAT, "add_generation_prompt": False})).json()
        assert without["tokens"] == answer["tokens"][: len(without["tokens"])]
        assert without["count"] < answer["count"]


async def test_detokenize_undoes_tokenize() -> None:
    async with serve() as app:
        for text in ("hello world", "é🙂", ""):
            tokens = (await app.post("/tokenize", prompt=text, add_special_tokens=False)).json()["tokens"]
            assert (await app.post("/detokenize", tokens=tokens)).json() == {"prompt": text}


@pytest.mark.parametrize("tokens", [[320], [-1], ["5"], [True], "5", None, [2**40]])
async def test_detokenize_refuses_what_is_no_token(tokens: Any) -> None:
    async with serve() as app:
        response = await app.post("/detokenize", tokens=tokens)
        assert response.status_code == 400
        assert "tokens" in response.json()["error"]["message"]


async def test_chat_tokenize_shows_the_rendered_text_and_its_tokens() -> None:
    async with serve() as app:
        answer = (await app.post("/chat_tokenize", CHAT)).json()
        assert answer["templated_text"] == RENDERED
        assert [each["id"] for each in answer["tokenize_response"]][:2] == [IM_START, ids("user")[0]]
        assert IM_END in [each["id"] for each in answer["tokenize_response"]]
        assert list(answer) == ["tokenize_response", "templated_text"]
        assert answer["tokenize_response"][-1]["stop"] == len(RENDERED)


async def test_chat_tokenize_without_a_template_is_a_template_error() -> None:
    async with serve(template=None) as app:
        response = await app.post("/chat_tokenize", CHAT)
        assert (response.status_code, response.json()["error_type"]) == (422, "template_error")


async def test_version_and_load() -> None:
    async with serve() as app:
        assert (await app.http.get("/version")).json() == {"version": __version__}
        assert (await app.http.get("/load")).json() == {"server_load": 0}
        with app.gateway.admission.request(3):
            assert (await app.http.get("/load")).json() == {"server_load": 3}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"inputs": "hello"}),
        ("/tokenize", {"prompt": "hello", "return_token_strs": True}),
        ("/chat_tokenize", CHAT),
    ],
)
async def test_tokens_are_written_beside_the_event_loop(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of 300 kB of text held every stream for half a second."""
    callers = Callers(monkeypatch, json_list, dialect_by_body, openai_tokens)
    async with serve() as app:
        assert (await app.post(path, body)).status_code == 200
    assert callers.beside_the_event_loop

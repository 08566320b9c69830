"""vLLM's `/v1/chat/completions/batch`: several chats in one request, a choice each."""

from typing import Any

import pytest

from tests.gateway.fixtures import HELLO, serve
from tests.gateway.toys import FAIL_TEXT, byte_level

PATH = "/v1/chat/completions/batch"
ONE = [{"role": "user", "content": "lo"}]
TWO = [{"role": "user", "content": "he"}, {"role": "assistant", "content": "stop"}]


def prompt(*messages: dict[str, str]) -> list[int]:
    text = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages)
    return list(byte_level().encode(f"{text}<|im_start|>assistant\n", add_special_tokens=False).ids)


async def test_each_chat_gets_a_choice_of_its_own_in_the_order_given() -> None:
    async with serve() as app:
        answer = (await app.post(PATH, messages=[ONE, TWO], max_tokens=2)).json()
        assert [list(request.prompt) for request in app.engine.requests] == [prompt(*ONE), prompt(*TWO)]
        assert answer["object"] == "chat.completion"
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert [choice["message"]["role"] for choice in answer["choices"]] == ["assistant"] * 2
        assert answer["usage"]["prompt_tokens"] == len(prompt(*ONE)) + len(prompt(*TWO))
        assert answer["usage"]["completion_tokens"] == 4


async def test_the_fields_of_a_chat_hold_for_each() -> None:
    async with serve() as app:
        fields = {"logprobs": True, "return_token_ids": True, "seed": 5, "temperature": 0.5, "echo": True}
        answer = (await app.post(PATH, messages=[ONE, TWO], **fields)).json()
        assert [request.sampling.seed for request in app.engine.requests] == [5, 5]
        assert [choice["token_ids"] for choice in answer["choices"]] == [HELLO] * 2
        assert [choice["message"]["content"] for choice in answer["choices"]] == ["hello world", "stophello world"]
        assert all(choice["logprobs"]["content"][0]["token"] == "hel" for choice in answer["choices"])
        assert answer["prompt_token_ids"] is None


async def test_one_chat_may_be_alone() -> None:
    async with serve() as app:
        [choice] = (await app.post(PATH, messages=[ONE])).json()["choices"]
        assert choice["message"]["content"] == "hello world"


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"messages": []}, ["messages", "empty"]),
        ({"messages": [ONE, []]}, ["messages[1]", "empty"]),
        ({"messages": ONE}, ["messages[0]", "list"]),
        ({"messages": [ONE] * 5}, ["messages", "4 chats", "--max-client-batch-size", "5"]),
        ({"messages": [ONE], "stream": True}, ["stream", "several chats"]),
        ({"messages": [ONE], "n": 2}, ["n ", "several chats"]),
        ({"messages": [ONE], "prompt_logprobs": 0}, ["prompt_logprobs", "several chats"]),
        ({"messages": [ONE], "tools": [{}]}, ["tools[0].type"]),
        ({"messages": [ONE], "model": "other"}, ["other", "does not exist"]),
        ({"messages": [TWO, [{"role": "assistant", "content": ""}]], "continue_final_message": True}, ["content"]),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_what_cannot_be_served_is_refused_by_name(fields: dict[str, Any], parts: list[str]) -> None:
    async with serve() as app:
        response = await app.post(PATH, fields)
        assert response.status_code in (400, 404)
        assert all(part in response.json()["error"]["message"] for part in parts), response.text
        assert app.engine.requests == []


async def test_every_chat_takes_a_permit() -> None:
    async with serve() as app:
        admission = app.gateway.admission
        with admission.request(admission.max_requests - 1):
            assert (await app.post(PATH, messages=[ONE])).status_code == 200
            assert (await app.post(PATH, messages=[ONE, TWO])).status_code == 429
        assert admission.active == 0


async def test_if_one_fails_the_request_does() -> None:
    async with serve() as app:
        failing = [{"role": "user", "content": "x"}]
        body = {"messages": [ONE, failing], "chat_template": "{{ messages[0].content }}"}
        assert (await app.post(PATH, body)).status_code == 200
        failing[0]["content"] = FAIL_TEXT
        assert (await app.post(PATH, body)).status_code == 500
        assert app.gateway.admission.active == 0

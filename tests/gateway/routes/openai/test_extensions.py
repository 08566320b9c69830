"""What vLLM's clients send beyond OpenAI's fields, and the legacy `best_of`."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import HELLO, ServedApp, events, serve
from tests.gateway.toys import BOS, TEMPLATE, byte_level

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "lo"}]}
[LO] = byte_level().encode("lo", add_special_tokens=False).ids


async def test_only_allowed_tokens_may_be_drawn_with_the_biases_given_for_them() -> None:
    async with serve() as app:
        body = {"prompt": "lo", "allowed_token_ids": [5, 7], "logit_bias": {"5": 1.5, "9": 2}}
        await app.post("/v1/completions", body)
        [request] = app.engine.requests
        assert request.sampling.only_biased
        assert dict(request.sampling.logit_bias) == {5: 1.5, 7: 0.0}


async def test_bad_words_are_sent_as_they_are_spelled_at_the_start_and_behind_a_space() -> None:
    async with serve() as app:
        await app.post("/v1/completions", prompt="lo", bad_words=["world", " lo", "lo"])
        [request] = app.engine.requests
        spelled = [byte_level().encode(text, add_special_tokens=False).ids for text in ("world", " world", " lo", "lo")]
        assert [list(word.ids) for word in request.sampling.bad_words] == spelled


async def test_prompt_logprobs_list_every_prompt_token_but_the_first() -> None:
    expected = [None, {str(LO): {"logprob": -0.5, "rank": 3, "decoded_token": "lo"}}]
    async with serve() as app:
        answer = (await app.post("/v1/completions", prompt="lo", prompt_logprobs=2)).json()
        assert answer["choices"][0]["prompt_logprobs"] == expected
        chat = (await app.post("/v1/chat/completions", {**CHAT, "prompt_logprobs": 0})).json()
        assert chat["prompt_logprobs"][0] is None
        assert all(len(each) == 1 for each in chat["prompt_logprobs"][1:])
        assert [request.sampling.top_logprobs for request in app.engine.requests] == [2, 0]


async def test_prompt_logprobs_do_not_widen_those_of_the_answer() -> None:
    async with serve() as app:
        body = {"prompt": "lo", "prompt_logprobs": 5, "logprobs": 1, "max_tokens": 1}
        [choice] = (await app.post("/v1/completions", body)).json()["choices"]
        assert len(choice["logprobs"]["top_logprobs"][0]) == 1


def likelier_by_seed(app: ServedApp) -> None:
    """An engine whose sequences are the likelier the higher their seed."""

    async def generate(request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
        app.engine.requests.append(request)
        token = pb.Token(id=HELLO[request.sampling.seed % 5], logprob=request.sampling.seed - 10.0)
        yield pb.RequestEvent(tokens=[token], finish=pb.LENGTH, prompt=pb.Prompt())

    app.engine.generate = generate  # type: ignore[method-assign]


async def test_best_of_answers_the_likeliest_and_counts_them_all() -> None:
    async with serve() as app:
        likelier_by_seed(app)
        body = {"prompt": ["lo", "lo"], "best_of": 4, "n": 2, "seed": 0, "max_tokens": 1}
        answer = (await app.post("/v1/completions", body)).json()
        assert [choice["text"] for choice in answer["choices"]] == ["or", " w"] * 2
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert answer["usage"]["completion_tokens"] == 8


async def test_a_template_of_the_request_replaces_the_models() -> None:
    async with serve() as app:
        template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ tone }}"
        body = {**CHAT, "chat_template": template, "chat_template_kwargs": {"tone": "lo"}}
        await app.post("/v1/chat/completions", body)
        await app.post("/v1/chat/completions", CHAT)
        mine, own = (list(request.prompt) for request in app.engine.requests)
        assert mine == [LO, LO]
        assert own != mine


async def test_a_template_of_the_request_does_for_a_model_without_one() -> None:
    async with serve(template=None) as app:
        assert (await app.post("/v1/chat/completions", CHAT)).status_code == 400
        response = await app.post("/v1/chat/completions", {**CHAT, "chat_template": "lo"})
        assert response.status_code == 200


@pytest.mark.parametrize("template", ["{% if %}", "{{ 1 / 0 }}", "{{ raise_exception('no') }}"])
async def test_a_template_of_the_request_that_fails_is_named(template: str) -> None:
    async with serve() as app:
        response = await app.post("/v1/chat/completions", {**CHAT, "chat_template": template})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "chat_template")


async def test_a_hostile_template_costs_its_sender_only() -> None:
    async with serve() as app:
        endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}"
        response = await app.post("/v1/chat/completions", {**CHAT, "chat_template": endless + "{% endfor %}" * 2})
        assert response.status_code == 400
        assert "too much time" in response.json()["error"]["message"]
        escape = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
        refused = await app.post("/v1/chat/completions", {**CHAT, "chat_template": escape})
        assert "class" not in str([request.prompt for request in app.engine.requests]) and refused.status_code == 400
        assert (await app.post("/v1/chat/completions", CHAT)).status_code == 200


async def test_documents_reach_the_template() -> None:
    async with serve(template="{% for d in documents %}{{ d['text'] }}{% endfor %}") as app:
        await app.post("/v1/chat/completions", {**CHAT, "documents": [{"text": "lo"}, {"text": "lo"}]})
        [request] = app.engine.requests
        assert list(request.prompt) == [LO, LO] and BOS not in request.prompt


async def test_token_ids_come_with_an_answer_that_asks_for_them() -> None:
    async with serve() as app:
        body = {"prompt": "lo", "return_token_ids": True, "stop": "wor"}
        [choice] = (await app.post("/v1/completions", body)).json()["choices"]
        assert (choice["prompt_token_ids"], choice["token_ids"]) == ([BOS, LO], HELLO[:4])
        answer = (await app.post("/v1/chat/completions", {**CHAT, "return_token_ids": True})).json()
        assert answer["prompt_token_ids"] == list(app.engine.requests[1].prompt)
        assert answer["choices"][0]["token_ids"] == HELLO
        echo = {"prompt": "lo", "echo": True, "max_tokens": 0, "return_token_ids": True}
        [scored] = (await app.post("/v1/completions", echo)).json()["choices"]
        assert scored["token_ids"] == []


async def test_a_stream_carries_each_token_id_once_and_those_of_the_prompt_at_first() -> None:
    async with serve() as app:
        for logprobs in (None, 1):
            body = {"prompt": "lo", "return_token_ids": True, "stream": True, "n": 2, "logprobs": logprobs}
            chunks = [each["choices"][0] for each in events(await app.post("/v1/completions", body))[:-1]]
            for index in range(2):
                mine = [choice for choice in chunks if choice["index"] == index]
                assert [id for choice in mine for id in choice["token_ids"]] == HELLO
                assert [choice.get("prompt_token_ids") for choice in mine] == [[BOS, LO]] + [None] * (len(mine) - 1)
        chat = events(await app.post("/v1/chat/completions", {**CHAT, "return_token_ids": True, "stream": True}))
        assert [chunk.get("prompt_token_ids") is not None for chunk in chat[:-1]] == [True] + [False] * (len(chat) - 2)
        assert [id for chunk in chat[:-1] for id in chunk["choices"][0].get("token_ids", [])] == HELLO


async def test_a_continued_message_is_echoed_in_front_of_its_continuation() -> None:
    messages = [*CHAT["messages"], {"role": "assistant", "content": "Say "}]
    body = {"messages": messages, "continue_final_message": True, "echo": True}
    async with serve() as app:
        answer = (await app.post("/v1/chat/completions", body)).json()
        assert answer["choices"][0]["message"]["content"] == "Say hello world"
        stream = events(await app.post("/v1/chat/completions", {**body, "stream": True}))
        deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in stream[:-1]]
        assert "".join(deltas) == "Say hello world"
        of_a_user = (await app.post("/v1/chat/completions", {**CHAT, "echo": True})).json()
        assert of_a_user["choices"][0]["message"]["content"] == "hello world"


async def test_a_request_may_name_itself() -> None:
    async with serve() as app:
        for path, prefix, body in (
            ("/v1/completions", "cmpl", {"prompt": "lo"}),
            ("/v1/chat/completions", "chatcmpl", CHAT),
        ):
            response = await app.post(path, {**body, "request_id": "mine.1"})
            assert (response.json()["id"], response.headers["x-request-id"]) == (f"{prefix}-mine.1", "mine.1")
            headers = {"x-request-id": "header"}
            both = await app.http.post(path, json={**body, "request_id": "mine.1"}, headers=headers)
            assert both.json()["id"] == f"{prefix}-header"


async def test_reasoning_of_earlier_answers_reaches_the_template_under_both_names() -> None:
    async with serve(template="{% for m in messages %}{{ m.reasoning_content }}{{ m.reasoning }}{% endfor %}") as app:
        for name in ("reasoning", "reasoning_content"):
            messages = [{"role": "assistant", "content": "a", name: "lo"}]
            await app.post("/v1/chat/completions", messages=messages)
        assert [list(request.prompt) for request in app.engine.requests] == [[LO, LO]] * 2


async def test_detokenising_shows_special_tokens_unless_told_to_skip_them() -> None:
    async with serve() as app:
        for skip, text in ((None, "<s>lo"), (False, "<s>lo"), (True, "lo")):
            answer = await app.post("/detokenize", tokens=[BOS, LO], skip_special_tokens=skip)
            assert answer.json() == {"prompt": text}


async def test_tokens_are_shown_as_ids_where_the_server_says_so_and_the_request_nothing() -> None:
    async with serve(return_tokens_as_token_ids=True) as app:
        for asked, shown in ((None, f"token_id:{HELLO[0]}"), (True, f"token_id:{HELLO[0]}"), (False, "hel")):
            body = {"max_tokens": 1, "return_tokens_as_token_ids": asked}
            text = (await app.post("/v1/completions", {**body, "prompt": "lo", "logprobs": 0})).json()
            chat = (await app.post("/v1/chat/completions", {**body, **CHAT, "logprobs": True})).json()
            assert text["choices"][0]["logprobs"]["tokens"] == [shown]
            assert [token["token"] for token in chat["choices"][0]["logprobs"]["content"]] == [shown]


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", {"prompt": "lo"}), ("/v1/chat/completions", CHAT)])
@pytest.mark.parametrize("asked", [{}, {"stream_options": {"include_usage": False}}])
async def test_every_chunk_tells_the_usage_where_the_server_says_so(
    path: str, body: dict[str, Any], asked: dict[str, Any]
) -> None:
    async with serve(enable_force_include_usage=True) as app:
        *chunks, done = events(await app.post(path, {**body, **asked, "stream": True}))
        assert done == "[DONE]"
        assert all(chunk["usage"]["prompt_tokens"] > 0 for chunk in chunks)
        assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 6)


async def test_more_logprobs_than_the_server_lists_are_refused_by_name() -> None:
    async with serve(max_logprobs=3) as app:
        for path, body in (
            ("/v1/completions", {"prompt": "lo", "logprobs": 4}),
            ("/v1/completions", {"prompt": "lo", "prompt_logprobs": 4}),
            ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 4}),
        ):
            error = (await app.post(path, body)).json()["error"]
            field = next(name for name in ("prompt_logprobs", "top_logprobs", "logprobs") if name in body)
            assert error["message"] == f"{field} must be at most 3 (--max-logprobs), given 4"
        assert (await app.post("/v1/completions", prompt="lo", logprobs=3)).status_code == 200
        everything = (await app.post("/v1/completions", prompt="lo", logprobs=-1)).json()["error"]
        assert everything["message"] == "logprobs -1 asks for the whole vocabulary: needs --max-logprobs -1"


async def test_a_prompt_with_more_logprobs_than_fit_a_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.routes.openai.sampling.MAX_LISTED_ALTERNATIVES", 10)
    async with serve() as app:
        assert (await app.post("/v1/completions", prompt=[5, 6], prompt_logprobs=5)).status_code == 200
        refused = await app.post("/v1/completions", prompt=[5, 6], prompt_logprobs=6)
        message = "prompt_logprobs asks for 6 logprobs beside each of 2 tokens, at most 10 can be listed with a prompt"
        assert refused.json()["error"]["message"] == message


async def test_special_tokens_and_template_are_told_to_who_tokenises_without_the_models_files() -> None:
    async with serve() as app:
        told = (await app.http.get("/tokenizer_info")).json()
        kind = "PreTrainedTokenizerFast"
        assert told == {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": kind, "chat_template": TEMPLATE}
    async with serve(template=None) as app:
        assert (await app.http.get("/tokenizer_info")).json()["chat_template"] is None


ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "lo", "max_tokens": 2},
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/batch": {"messages": [CHAT["messages"]]},
    "/v1/responses": {"input": "lo"},
}


@pytest.mark.parametrize("path", ROUTES)
async def test_a_priority_in_the_header_counts_before_that_of_the_body(path: str) -> None:
    async with serve() as app:
        headers = {"X-Vllm-Priority": "-10"}
        answer = await app.http.post(path, json={**ROUTES[path], "priority": 3}, headers=headers)
        assert answer.status_code == 200
        assert [request.priority for request in app.engine.requests] == [-10]


@pytest.mark.parametrize("path", ROUTES)
async def test_a_header_that_is_no_priority_is_refused_by_name(path: str) -> None:
    async with serve() as app:
        for given in ("high", "1.5", "", "2147483648", "-99999999999999"):
            answer = await app.http.post(path, json=ROUTES[path], headers={"X-Vllm-Priority": given})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "x-vllm-priority"

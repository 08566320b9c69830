"""`/v1/chat/completions`: what OpenAI's clients depend on, chunk by chunk."""

import json
from typing import Any

import pytest

from tests.engine_mock import EOS
from tests.gateway.fixtures import HELLO, events, serve
from tests.gateway.toys import IM_END, byte_level

USER = [{"role": "user", "content": "lo"}]
PROMPT = "<|im_start|>user\nlo<|im_end|>\n<|im_start|>assistant\n"
BACKEND = byte_level()


def ids(text: str) -> list[int]:
    return list(BACKEND.encode(text, add_special_tokens=False).ids)


def deltas(stream: list[Any], index: int = 0) -> list[dict[str, Any]]:
    choices = [choice for chunk in stream if chunk != "[DONE]" for choice in chunk.get("choices", [])]
    return [choice for choice in choices if choice["index"] == index]


async def test_an_answer_has_the_whole_envelope() -> None:
    async with serve() as app:
        response = await app.post("/v1/chat/completions", messages=USER)
        answer = response.json()
        assert answer.pop("id") == "chatcmpl-" + response.headers["x-request-id"]
        assert isinstance(answer.pop("created"), int)
        assert answer.pop("system_fingerprint").startswith("fp_")
        assert answer == {
            "object": "chat.completion",
            "model": "mock/model",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "hello world", "refusal": None, "reasoning": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                    "stop_reason": None,
                    "token_ids": None,
                }
            ],
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "service_tier": None,
            "kv_transfer_params": None,
            "metrics": None,
            "usage": {
                "prompt_tokens": len(ids(PROMPT)),
                "completion_tokens": 6,
                "total_tokens": len(ids(PROMPT)) + 6,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }


@pytest.mark.parametrize(("side", "kept"), [("left", slice(-3, None)), ("right", slice(3))])
async def test_a_chat_is_truncated_at_the_side_that_the_request_names(side: str, kept: slice) -> None:
    async with serve() as app:
        await app.post("/v1/chat/completions", messages=USER, truncate_prompt_tokens=3, truncation_side=side)
        assert list(app.engine.requests[0].prompt) == ids(PROMPT)[kept]


async def test_messages_become_the_templates_prompt_without_added_special_tokens() -> None:
    async with serve() as app:
        await app.post("/v1/chat/completions", messages=USER)
        assert list(app.engine.requests[0].prompt) == ids(PROMPT)


async def test_stream_bytes_are_exact() -> None:
    async with serve() as app:
        body = {"messages": USER, "stream": True, "max_tokens": 2}
        response = await app.post("/v1/chat/completions", body)
        first = json.loads(response.text.split("\n\n")[0].removeprefix("data: "))
        head = (
            f'data: {{"id":"chatcmpl-{response.headers["x-request-id"]}","object":"chat.completion.chunk",'
            f'"created":{first["created"]},"model":"mock/model","system_fingerprint":"{first["system_fingerprint"]}",'
            '"choices":[{"index":0,"delta":'
        )
        assert response.text == (
            head + '{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
            f'{head}{{"content":"hel"}},"logprobs":null,"finish_reason":null}}]}}\n\n'
            f'{head}{{"content":"lo"}},"logprobs":null,"finish_reason":null}}]}}\n\n'
            f'{head}{{}},"logprobs":null,"finish_reason":"length","stop_reason":null}}]}}\n\n'
            "data: [DONE]\n\n"
        )


async def test_a_stream_adds_up_to_the_answer() -> None:
    async with serve() as app:
        stream = events(await app.post("/v1/chat/completions", messages=USER, stream=True))
        assert "".join(choice["delta"].get("content", "") for choice in deltas(stream)) == "hello world"
        assert [choice["finish_reason"] for choice in deltas(stream)] == [None] * 6 + ["stop"]
        assert stream[-1] == "[DONE]"


@pytest.mark.parametrize("extra", [{}, {"logprobs": True}, {"return_token_ids": True}], ids=str)
async def test_tgis_clients_find_role_and_content_in_every_delta(extra: dict[str, Any]) -> None:
    """Known by the name they give any model; so is a caller of TGI's documentation."""
    async with serve() as app:
        body = {"messages": [*USER, {"role": "assistant", "content": "Say "}], "echo": True, "stream": True}
        stream = deltas(events(await app.post("/v1/chat/completions", {**body, "model": "tgi", **extra})))
        assert all(choice["delta"].keys() == {"role", "content"} for choice in stream)
        assert {choice["delta"]["role"] for choice in stream} == {"assistant"}
        assert "".join(choice["delta"]["content"] for choice in stream) == "Say hello world"
        assert stream[-1]["delta"]["content"] == ""


@pytest.mark.parametrize(
    ("model", "headers"),
    [(None, {}), ("mock/model", {}), ("dummy", {}), ("tgi", {"X-Stainless-Lang": "python"})],
    ids=["no name", "its name", "huggingface_hub", "OpenAI's SDK"],
)
async def test_others_find_the_role_in_the_first_delta_only(model: str | None, headers: dict[str, str]) -> None:
    async with serve() as app:
        body = {"messages": USER, "stream": True, "model": model}
        stream = deltas(events(await app.http.post("/v1/chat/completions", json=body, headers=headers)))
        assert ["role" in choice["delta"] for choice in stream] == [True] + [False] * (len(stream) - 1)
        assert stream[-1]["delta"] == {}


async def test_usage_comes_in_a_chunk_without_choices() -> None:
    async with serve() as app:
        options = {"include_usage": True}
        stream = events(await app.post("/v1/chat/completions", messages=USER, stream=True, stream_options=options))
        *chunks, usage, done = stream
        assert all(chunk["usage"] is None for chunk in chunks)
        assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 6, "[DONE]")


async def test_continuous_usage_counts_up() -> None:
    async with serve() as app:
        options = {"include_usage": True, "continuous_usage_stats": True}
        stream = events(await app.post("/v1/chat/completions", messages=USER, stream=True, stream_options=options))
        assert [chunk["usage"]["completion_tokens"] for chunk in stream[:-1]] == [0, 1, 2, 3, 4, 5, 6, 6]
        prompt = len(ids(PROMPT))
        assert {chunk["usage"]["prompt_tokens"] for chunk in stream[:-1]} == {prompt}
        assert all(c["usage"]["total_tokens"] == prompt + c["usage"]["completion_tokens"] for c in stream[:-1])


async def test_continuous_usage_is_that_of_the_chunks_own_choice() -> None:
    async with serve() as app:
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {"messages": USER, "stream": True, "stream_options": options, "n": 2}
        *chunks, last, _ = events(await app.post("/v1/chat/completions", body))
        for index in range(2):
            mine = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["index"] == index]
            assert [usage["completion_tokens"] for usage in mine] == [0, 1, 2, 3, 4, 5, 6]
        assert last["usage"]["completion_tokens"] == 12


async def test_several_choices_interleave_and_usage_sums_them() -> None:
    async with serve() as app:
        body = {"messages": USER, "n": 3, "stream": True, "stream_options": {"include_usage": True}, "seed": 7}
        stream = events(await app.post("/v1/chat/completions", body))
        for index in range(3):
            choices = deltas(stream, index)
            assert choices[0]["delta"] == {"role": "assistant", "content": ""}
            assert "".join(choice["delta"].get("content", "") for choice in choices) == "hello world"
            assert choices[-1]["finish_reason"] == "stop"
        assert stream[-2]["usage"]["completion_tokens"] == 18
        assert stream[-2]["usage"]["prompt_tokens"] == len(ids(PROMPT))
        assert [request.sampling.seed for request in app.engine.requests] == [7, 8, 9]
        answer = (await app.post("/v1/chat/completions", {**body, "stream": False, "stream_options": None})).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("stop", "text"), [("world", "hello "), (["o w"], "hell"), (["ell", "lo"], "h"), (["d"], "hello worl")]
)
async def test_stop_strings_are_cut_and_never_leak(stop: Any, text: str) -> None:
    async with serve() as app:
        answer = (await app.post("/v1/chat/completions", messages=USER, stop=stop)).json()
        [choice] = answer["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
        assert choice["stop_reason"] in stop
        stream = events(await app.post("/v1/chat/completions", messages=USER, stop=stop, stream=True))
        assert "".join(each["delta"].get("content", "") for each in deltas(stream)) == text
        assert app.engine.cancelled == [1, 2]


async def test_a_stop_string_that_never_completes_is_shown() -> None:
    async with serve() as app:
        stream = events(await app.post("/v1/chat/completions", messages=USER, stop="world!", stream=True))
        assert "".join(each["delta"].get("content", "") for each in deltas(stream)) == "hello world"


async def test_stop_strings_stay_when_asked_for() -> None:
    async with serve() as app:
        body = {"messages": USER, "stop": "o w", "include_stop_str_in_output": True}
        assert (await app.post("/v1/chat/completions", body)).json()["choices"][0]["message"]["content"] == "hello w"


async def test_stop_token_ids_end_without_showing() -> None:
    async with serve() as app:
        answer = (await app.post("/v1/chat/completions", messages=USER, stop_token_ids=[HELLO[2]])).json()
        [choice] = answer["choices"]
        assert choice["message"]["content"] == "hello"
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", HELLO[2])


async def test_special_tokens_are_left_out_unless_asked_for() -> None:
    async with serve([HELLO[0], IM_END, HELLO[1], EOS]) as app:
        hidden = (await app.post("/v1/chat/completions", messages=USER)).json()
        shown = (await app.post("/v1/chat/completions", messages=USER, skip_special_tokens=False)).json()
        assert hidden["choices"][0]["message"]["content"] == "hello"
        assert shown["choices"][0]["message"]["content"] == "hel<|im_end|>lo"


async def test_logprobs_list_every_token_with_its_exact_bytes() -> None:
    async with serve([*ids("lo é"), EOS]) as app:
        body = {"messages": USER, "logprobs": True, "top_logprobs": 1}
        [choice] = (await app.post("/v1/chat/completions", body)).json()["choices"]
        content = choice["logprobs"]["content"]
        assert b"".join(bytes(entry["bytes"]) for entry in content) == "lo é</s>".encode()
        assert [entry["token"] for entry in content] == ["lo", " ", "\ufffd", "\ufffd", "</s>"]
        assert all(entry["logprob"] == -0.25 for entry in content)
        assert all(len(entry["top_logprobs"]) == 1 for entry in content)
        assert list(content[0]) == ["token", "logprob", "bytes", "top_logprobs"]


async def test_logprobs_without_alternatives_have_an_empty_list() -> None:
    async with serve() as app:
        [choice] = (await app.post("/v1/chat/completions", messages=USER, logprobs=True)).json()["choices"]
        assert all(entry["top_logprobs"] == [] for entry in choice["logprobs"]["content"])


@pytest.mark.parametrize("stop", [None, "o w", "world!"])
async def test_streamed_logprobs_are_those_of_the_answer(stop: str | None) -> None:
    async with serve() as app:
        body = {"messages": USER, "logprobs": True, "top_logprobs": 2, "stop": stop}
        whole = (await app.post("/v1/chat/completions", body)).json()["choices"][0]
        stream = deltas(events(await app.post("/v1/chat/completions", {**body, "stream": True})))
        entries = [entry for choice in stream if choice["logprobs"] for entry in choice["logprobs"]["content"]]
        assert entries == whole["logprobs"]["content"]
        if stop == "o w":
            assert [entry["token"] for entry in entries] == ["hel", "lo", " w"]


async def test_developer_is_system_where_the_template_knows_no_better() -> None:
    async with serve() as app:
        await app.post("/v1/chat/completions", messages=[{"role": "developer", "content": "lo"}, *USER])
        expected = "<|im_start|>system\nlo<|im_end|>\n" + PROMPT
        assert list(app.engine.requests[0].prompt) == ids(expected)


async def test_a_refusal_is_what_the_assistant_said() -> None:
    async with serve() as app:
        messages = [{"role": "assistant", "content": None, "refusal": "he"}, *USER]
        await app.post("/v1/chat/completions", messages=messages)
        assert list(app.engine.requests[0].prompt) == ids("<|im_start|>assistant\nhe<|im_end|>\n" + PROMPT)


@pytest.mark.parametrize(
    "part",
    [{"type": "input_text", "text": "he"}, {"type": "output_text", "text": "he"}, {"type": "refusal", "refusal": "he"}],
    ids=lambda part: part["type"],
)
async def test_a_part_of_another_name_that_is_text_is_text(part: dict[str, str]) -> None:
    async with serve() as app:
        messages = [{"role": "assistant", "content": [part]}, *USER]
        assert (await app.post("/v1/chat/completions", messages=messages)).status_code == 200
        assert list(app.engine.requests[0].prompt) == ids("<|im_start|>assistant\nhe<|im_end|>\n" + PROMPT)


async def test_text_parts_are_joined() -> None:
    async with serve() as app:
        parts = [{"type": "text", "text": "l"}, {"type": "text", "text": "o"}]
        await app.post("/v1/chat/completions", messages=[{"role": "user", "content": parts}])
        assert list(app.engine.requests[0].prompt) == ids(PROMPT.replace("lo", "l\no"))


async def test_the_final_message_can_be_continued() -> None:
    async with serve() as app:
        messages = [*USER, {"role": "assistant", "content": "hel"}]
        await app.post("/v1/chat/completions", messages=messages, continue_final_message=True)
        expected = "<|im_start|>user\nlo<|im_end|>\n<|im_start|>assistant\nhel"
        assert list(app.engine.requests[0].prompt) == ids(expected)


async def test_the_generation_prompt_can_be_left_out() -> None:
    async with serve() as app:
        await app.post("/v1/chat/completions", messages=USER, add_generation_prompt=False)
        assert list(app.engine.requests[0].prompt) == ids("<|im_start|>user\nlo<|im_end|>\n")


async def test_template_variables_reach_the_template() -> None:
    async with serve(template="{{ tone }}{{ reasoning_effort }}") as app:
        body = {"messages": USER, "chat_template_kwargs": {"tone": "lo"}, "reasoning_effort": "low"}
        await app.post("/v1/chat/completions", body)
        assert list(app.engine.requests[0].prompt) == ids("lolow")


async def test_new_tokens_default_to_the_rest_of_the_context() -> None:
    async with serve() as app:
        for limits in ({}, {"max_tokens": 5}, {"max_tokens": 5, "max_completion_tokens": 3}):
            await app.post("/v1/chat/completions", messages=USER, **limits)
        rest = 64 - len(ids(PROMPT))
        assert [request.max_new_tokens for request in app.engine.requests] == [rest, 5, 3]


async def test_a_model_without_a_template_says_so() -> None:
    async with serve(template=None) as app:
        response = await app.post("/v1/chat/completions", messages=USER)
        assert response.status_code == 400
        assert response.json()["error"]["message"] == "the model has no chat template"


async def test_a_template_may_refuse() -> None:
    async with serve(template="{{ raise_exception('roles must alternate') }}") as app:
        for stream in (False, True):
            response = await app.post("/v1/chat/completions", messages=USER, stream=stream)
            assert response.status_code == 400
            assert response.json()["error"]["message"] == "roles must alternate"


async def test_a_failure_in_mid_stream_is_its_last_event_without_done() -> None:
    async with serve() as app:
        app.engine.unavailable, app.engine.die_after = "the engine stopped", 2
        stream = events(await app.post("/v1/chat/completions", messages=USER, stream=True))
        assert stream[-1] == {
            "error": {
                "message": "the engine stopped",
                "type": "server_error",
                "param": None,
                "code": "engine_unavailable",
            }
        }

"""`/v1/completions`: several prompts, token ids, echo and the older layout of logprobs."""

from typing import Any

import pytest

from gateway.routes.openai import completions
from tests.engine_mock import EOS
from tests.gateway.fixtures import HELLO, Callers, events, serve
from tests.gateway.toys import BOS, byte_level

BACKEND = byte_level()


def ids(text: str) -> list[int]:
    return list(BACKEND.encode(text, add_special_tokens=False).ids)


def choices(stream: list[Any], index: int = 0) -> list[dict[str, Any]]:
    found = [choice for chunk in stream if chunk != "[DONE]" for choice in chunk["choices"]]
    return [choice for choice in found if choice["index"] == index]


async def test_an_answer_has_the_whole_envelope() -> None:
    async with serve() as app:
        response = await app.post("/v1/completions", prompt="lo")
        answer = response.json()
        assert answer["id"] == "cmpl-" + response.headers["x-request-id"]
        assert (answer["object"], answer["model"]) == ("text_completion", "mock/model")
        choice = {"index": 0, "text": "hello world", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        assert answer["choices"] == [choice | dict.fromkeys(("token_ids", "prompt_token_ids", "prompt_logprobs"))]
        assert answer["service_tier"] is answer["kv_transfer_params"] is answer["metrics"] is None
        assert answer["usage"]["total_tokens"] == 2 + 6


async def test_a_stream_adds_up_and_names_its_end_once() -> None:
    async with serve() as app:
        stream = events(await app.post("/v1/completions", prompt="lo", stream=True))
        assert "".join(choice["text"] for choice in choices(stream)) == "hello world"
        assert [choice["finish_reason"] for choice in choices(stream)] == [None] * 5 + ["stop"]
        assert stream[-1] == "[DONE]"
        assert len({chunk["id"] for chunk in stream[:-1]}) == len({chunk["created"] for chunk in stream[:-1]}) == 1


async def test_continuous_usage_is_that_of_the_chunks_own_choice() -> None:
    async with serve() as app:
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {"prompt": ["lo", "hello"], "n": 2, "stream": True, "stream_options": options}
        *chunks, last, _ = events(await app.post("/v1/completions", body))
        for index, prompt_tokens in enumerate([2, 2, 3, 3]):
            mine = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["index"] == index]
            assert [usage["completion_tokens"] for usage in mine] == [1, 2, 3, 4, 5, 6]
            assert {usage["prompt_tokens"] for usage in mine} == {prompt_tokens}
            assert all(usage["total_tokens"] == prompt_tokens + usage["completion_tokens"] for usage in mine)
        assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (5, 24)


async def test_continuous_usage_of_an_echo_alone_counts_no_token() -> None:
    async with serve() as app:
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {"prompt": "lo", "echo": True, "max_tokens": 0, "stream": True, "stream_options": options}
        *chunks, _ = events(await app.post("/v1/completions", body))
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 0]


async def test_sixteen_tokens_unless_told_otherwise() -> None:
    async with serve() as app:
        for limit in ({}, {"max_tokens": None}, {"max_tokens": 3}, {"max_tokens": 62}):
            await app.post("/v1/completions", prompt="lo", **limit)
        await app.post("/v1/completions", prompt=[5] * 60)
        assert [request.max_new_tokens for request in app.engine.requests] == [16, 16, 3, 62, 4]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("lo", [[BOS, *ids("lo")]]),
        (["lo", "he"], [[BOS, *ids("lo")], [BOS, *ids("he")]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
async def test_prompts_are_texts_or_ids_one_or_many(prompt: Any, expected: list[list[int]]) -> None:
    async with serve() as app:
        answer = (await app.post("/v1/completions", prompt=prompt, n=2)).json()
        asked = [list(request.prompt) for request in app.engine.requests]
        assert asked == [each for each in expected for _ in range(2)]
        assert [choice["index"] for choice in answer["choices"]] == list(range(2 * len(expected)))
        assert answer["usage"]["prompt_tokens"] == sum(map(len, expected))


@pytest.mark.parametrize(("least", "text"), [(0, "he"), (1, "hel"), (2, "hello wor"), (5, "hello world")])
async def test_stop_strings_end_nothing_before_min_tokens(least: int, text: str) -> None:
    async with serve() as app:
        body = {"prompt": "lo", "stop": "l", "min_tokens": least}
        answer = (await app.post("/v1/completions", body)).json()
        assert answer["choices"][0]["text"] == text
        stream = events(await app.post("/v1/completions", {**body, "stream": True}))
        assert "".join(choice["text"] for choice in choices(stream)) == text


async def test_special_tokens_of_the_prompt_can_be_left_out() -> None:
    async with serve() as app:
        await app.post("/v1/completions", prompt="lo", add_special_tokens=False)
        assert list(app.engine.requests[0].prompt) == ids("lo")


async def test_a_text_far_longer_than_the_context_can_be_truncated_too() -> None:
    async with serve() as app:
        await app.post("/v1/completions", prompt="lo" * 10_000 + "hello", truncate_prompt_tokens=3)
        assert list(app.engine.requests[0].prompt) == [*ids("lo"), *ids("hello")]


async def test_tokens_may_be_longer_than_those_of_prose() -> None:
    async with serve(max_total_tokens=512) as app:
        await app.post("/v1/completions", prompt="<|im_start|>" * 500, max_tokens=1)
        assert len(app.engine.requests[0].prompt) == 501


@pytest.mark.parametrize(("keep", "expected"), [(1, 1), (-1, 3), (99, 3)])
async def test_prompts_can_be_truncated_to_their_end(keep: int, expected: int) -> None:
    async with serve() as app:
        await app.post("/v1/completions", prompt="hello", truncate_prompt_tokens=keep)
        assert list(app.engine.requests[0].prompt) == [BOS, *ids("hello")][-expected:]


@pytest.mark.parametrize(("wanted", "kept"), [(10, 54), (63, 1), (None, 63)])
async def test_a_prompt_is_truncated_to_what_fits_beside_the_wanted_tokens(wanted: int | None, kept: int) -> None:
    async with serve(max_total_tokens=64) as app:
        body = {"prompt": [5] * 99, "truncate_prompt_tokens": -1, "max_tokens": wanted}
        assert (await app.post("/v1/completions", body)).status_code == 200
        assert len(app.engine.requests[0].prompt) == kept


async def test_truncating_makes_no_room_for_more_tokens_than_there_can_be() -> None:
    async with serve(max_total_tokens=64) as app:
        answer = await app.post("/v1/completions", prompt=[5] * 99, truncate_prompt_tokens=-1, max_tokens=64)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(("side", "kept"), [("left", [7, 8]), ("right", [5, 6]), (None, [7, 8])])
async def test_a_prompt_is_truncated_at_the_side_that_the_request_names(side: str | None, kept: list[int]) -> None:
    async with serve() as app:
        fields = {"truncate_prompt_tokens": 2, "truncation_side": side}
        await app.post("/v1/completions", prompt=[5, 6, 7, 8], **fields)
        assert list(app.engine.requests[0].prompt) == kept


async def test_of_a_text_far_longer_than_the_context_the_start_is_kept_where_the_end_is_cut() -> None:
    async with serve() as app:
        fields = {"truncate_prompt_tokens": 3, "truncation_side": "right"}
        await app.post("/v1/completions", prompt="hello" + "lo" * 10_000, **fields)
        assert list(app.engine.requests[0].prompt) == [BOS, *ids("hello")]


async def test_echo_puts_the_prompt_in_front() -> None:
    async with serve() as app:
        answer = (await app.post("/v1/completions", prompt="lo ", echo=True)).json()
        assert answer["choices"][0]["text"] == "lo hello world"
        answer = (await app.post("/v1/completions", prompt=ids("lo "), echo=True)).json()
        assert answer["choices"][0]["text"] == "lo hello world"
        stream = events(await app.post("/v1/completions", prompt="lo ", echo=True, stream=True))
        assert choices(stream)[0]["text"].startswith("lo ")
        assert "".join(choice["text"] for choice in choices(stream)) == "lo hello world"


async def test_echo_alone_scores_a_text() -> None:
    async with serve() as app:
        answer = (await app.post("/v1/completions", prompt="hello", echo=True, max_tokens=0, logprobs=1)).json()
        [choice] = answer["choices"]
        assert choice["text"] == "hello"
        assert choice["finish_reason"] == "length"
        assert choice["logprobs"]["tokens"] == ["<s>", "hel", "lo"]
        assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
        assert choice["logprobs"]["top_logprobs"][0] is None
        assert choice["logprobs"]["text_offset"] == [0, 0, 3]
        assert answer["usage"]["completion_tokens"] == 0


async def test_logprobs_have_the_older_layout() -> None:
    async with serve() as app:
        [choice] = (await app.post("/v1/completions", prompt="lo", logprobs=2, max_tokens=2)).json()["choices"]
        logprobs = choice["logprobs"]
        assert list(logprobs) == ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
        assert logprobs["tokens"] == ["hel", "lo"]
        assert logprobs["token_logprobs"] == [-0.25, -0.25]
        assert [list(each.values()) for each in logprobs["top_logprobs"]] == [[-0.25, -0.5]] * 2
        assert logprobs["text_offset"] == [0, 3]


async def test_tokens_that_are_parts_of_a_character_are_told_apart_by_their_bytes() -> None:
    first, second, third = ids("€")
    async with serve(script=[first, second, third, *ids("lo")]) as app:
        body = {"prompt": [*ids("a"), first, second, third, *ids("b")], "echo": True, "logprobs": 1, "max_tokens": 4}
        [choice] = (await app.post("/v1/completions", body)).json()["choices"]
        euro = ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"]
        assert choice["text"] == "a€b€lo"
        assert choice["logprobs"]["tokens"] == ["a", *euro, "b", *euro, "lo"]
        assert choice["logprobs"]["text_offset"] == [0, 1, 1, 1, 2, 3, 3, 3, 4]
        assert [list(each) for each in choice["logprobs"]["top_logprobs"][5:8]] == [[each] for each in euro]


async def test_tokens_can_be_named_by_their_ids() -> None:
    async with serve() as app:
        body = {"prompt": "lo", "logprobs": 2, "max_tokens": 1, "return_tokens_as_token_ids": True}
        [choice] = (await app.post("/v1/completions", body)).json()["choices"]
        name, other = f"token_id:{HELLO[0]}", f"token_id:{HELLO[0] + 1}"
        assert choice["logprobs"]["tokens"] == [name]
        assert list(choice["logprobs"]["top_logprobs"][0]) == [name, other]


@pytest.mark.parametrize("extra", [{}, {"echo": True}, {"stop": "o w"}, {"stop": "world!"}], ids=str)
async def test_streamed_logprobs_are_those_of_the_answer(extra: dict[str, Any]) -> None:
    async with serve() as app:
        body = {"prompt": "lo", "logprobs": 1, **extra}
        whole = (await app.post("/v1/completions", body)).json()["choices"][0]
        stream = choices(events(await app.post("/v1/completions", {**body, "stream": True})))
        for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [each for choice in stream for each in choice["logprobs"][field]] == whole["logprobs"][field]
        assert "".join(choice["text"] for choice in stream) == whole["text"]


async def test_offsets_count_characters_of_the_text() -> None:
    async with serve([*ids("é lo"), EOS]) as app:
        [choice] = (await app.post("/v1/completions", prompt="x", logprobs=0)).json()["choices"]
        assert choice["text"] == "é lo"
        assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2, 4]


async def test_sampling_means_what_it_means_at_openai() -> None:
    async with serve() as app:
        fields = {
            "temperature": 0.5, "top_k": 5, "top_p": 0.75, "min_p": 0.25, "typical_p": 0.5, "repetition_penalty": 1.5,
            "frequency_penalty": -1.0, "presence_penalty": 1.0, "seed": 11,
        }  # fmt: skip
        extra = {"logit_bias": {"7": -100, "8": 5}, "ignore_eos": True, "min_tokens": 2, "stop_token_ids": [9],
                 "cache_salt": "tenant", "priority": -3, "logprobs": 4}  # fmt: skip
        await app.post("/v1/completions", prompt="lo", **fields, **extra)
        [request] = app.engine.requests
        assert {name: getattr(request.sampling, name) for name in fields} == fields
        assert dict(request.sampling.logit_bias) == {7: -100.0, 8: 5.0}
        assert (request.ignore_eos, request.min_new_tokens, list(request.stop_token_ids)) == (True, 2, [9])
        assert (request.cache_salt, request.priority, request.sampling.top_logprobs) == (b"tenant", -3, 4)
        assert not request.sampling.frequency_over_length
        assert not request.sampling.processed_logprobs


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 1e-9}, {"top_p": 0}], ids=str)
async def test_zero_is_greedy(fields: dict[str, float]) -> None:
    async with serve() as app:
        await app.post("/v1/completions", prompt="lo", **fields)
        assert app.engine.requests[0].sampling.temperature == 0


async def test_the_models_recommendation_fills_what_is_left_open() -> None:
    async with serve(generation_config={"temperature": 0.5, "top_k": 20, "top_p": 0.75}) as app:
        await app.post("/v1/completions", prompt="lo")
        await app.post("/v1/completions", prompt="lo", temperature=1, top_k=-1, top_p=1)
        await app.post("/generate", inputs="lo")
        recommended, chosen, tgi = (request.sampling for request in app.engine.requests)
        assert (recommended.temperature, recommended.top_k, recommended.top_p) == (0.5, 20, 0.75)
        assert (chosen.temperature, chosen.top_k, chosen.top_p) == (1, 0, 1)
        assert (tgi.temperature, tgi.top_k, tgi.top_p) == (1, 0, 1)


@pytest.mark.parametrize("seed", [None, -1])
async def test_every_request_draws_its_own_seed(seed: int | None) -> None:
    async with serve() as app:
        for _ in range(2):
            await app.post("/v1/completions", prompt="lo", seed=seed)
        first, second = app.engine.requests
        assert first.sampling.seed != second.sampling.seed


@pytest.mark.parametrize("stream", [False, True])
async def test_the_logprobs_of_a_prompt_are_worded_beside_the_event_loop(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of tokens with twenty logprobs each take a second, in which all streams would stand still."""
    callers = Callers(monkeypatch, completions.completion_logprobs, completions)
    async with serve() as app:
        body = {"prompt": "hello", "echo": True, "max_tokens": 0, "logprobs": 1, "stream": stream}
        assert (await app.post("/v1/completions", body)).status_code == 200
    assert callers.beside_the_event_loop

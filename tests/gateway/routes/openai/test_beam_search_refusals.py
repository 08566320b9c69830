"""What `/v1` refuses beside `use_beam_search`, by name, and searches that the engine has no room for."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from jaxengine.request.checks import check_request
from jaxengine.request.interface import Description
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.service import codec
from tests.engine_mock import EOS
from tests.gateway.fixtures import ServedApp, serve
from tests.gateway.routes.openai.test_beam_search import BEAMS, BODIES, CHAT, SEARCH, TEXT, routes, texts
from tests.gateway.routes.openai.test_chat import USER
from tests.gateway.routes.openai.test_reasoning import THOUGHT
from tests.gateway.routes.openai.test_reasoning import serving as serving_reasoner
from tests.gateway.routes.openai.tool_chats import HERMES, WEATHER
from tests.gateway.toys import BOS

BATCH = "/v1/chat/completions/batch"


async def error_of(app: ServedApp, path: str, /, **fields: Any) -> dict[str, Any]:
    response = await app.post(path, BODIES[path] | fields)
    assert response.status_code == 400, response.text
    assert app.engine.requests == []
    found: dict[str, Any] = response.json()["error"]
    return found


BESIDE: list[dict[str, Any]] = [
    {"stream": True},
    {"temperature": 0.5},
    {"temperature": 1},
    {"top_p": 0.5},
    {"top_k": 1},
    {"min_p": 0.1},
    {"typical_p": 0.9},
    {"stop": "a"},
    {"stop": ["a"]},
    {"prompt_logprobs": 0},
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"regex": "a"}},
    {"guided_choice": ["a", "b"]},
    {"regex": "a"},
]
BESIDE_A_CHAT: list[dict[str, Any]] = [
    {"thinking_token_budget": 5},
    {"thinking_budget_tokens": 5},
    {"reasoning_budget_tokens": 0},
    {"reasoning": {"max_tokens": 5}},
]


@pytest.mark.parametrize(
    ("path", "fields"),
    [*itertools.product(BODIES, BESIDE), *((CHAT, fields) for fields in BESIDE_A_CHAT)],
    ids=str,
)
async def test_what_does_not_go_with_a_search_is_refused_by_name(path: str, fields: dict[str, Any]) -> None:
    async with serve() as app:
        error = await error_of(app, path, **fields)
        [name] = fields
        assert error["param"].partition(".")[0] == name
        assert error["message"].startswith(name) and "not supported with use_beam_search" in error["message"]


@routes
@pytest.mark.parametrize("fields", [{"length_penalty": 2.0}, {"early_stopping": True}, {"early_stopping": "never"}])
@pytest.mark.parametrize("search", [None, False])
async def test_the_fields_of_a_search_need_one(path: str, fields: dict[str, Any], search: bool | None) -> None:
    async with serve() as app:
        error = await error_of(app, path, **fields, use_beam_search=search)
        [name] = fields
        assert error["param"] == name and error["message"] == f"{name} is only allowed when use_beam_search is true"
        nothing = {"length_penalty": 1.0, "early_stopping": False, "use_beam_search": search}
        assert (await app.post(path, BODIES[path] | nothing)).status_code == 200
        assert not app.engine.requests[0].HasField("beam_search")


@routes
@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"length_penalty": 10.5}, ["length_penalty", "10.5", "at most 10"]),
        ({"length_penalty": -11}, ["length_penalty", "-11", "at least -10"]),
        ({"early_stopping": "always"}, ["early_stopping: must be true or false or 'never'"]),
        ({"early_stopping": 1}, ["early_stopping: must be true or false or 'never'"]),
        ({"use_beam_search": 1}, ["use_beam_search", "true or false"]),
        ({"n": 9}, ["n", "9", "8"]),
    ],
    ids=str,
)
async def test_values_out_of_range_are_refused_with_both_numbers(
    path: str, fields: dict[str, Any], parts: list[str]
) -> None:
    async with serve() as app:
        message = (await error_of(app, path, **fields))["message"]
        assert all(part in message for part in parts), message


async def test_a_completion_echoes_no_logprobs_of_its_prompt() -> None:
    async with serve() as app:
        error = await error_of(app, TEXT, echo=True, logprobs=0)
        assert error["param"] == "echo" and "use_beam_search" in error["message"]
        error = await error_of(app, TEXT, best_of=1, n=2)
        assert error["param"] == "best_of"


async def test_a_batch_of_chats_is_not_searched() -> None:
    async with serve() as app:
        response = await app.post(BATCH, messages=[USER], **SEARCH)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "use_beam_search")


async def test_tools_that_need_a_grammar_are_refused_and_others_are_not() -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    async with serve(template=HERMES, max_total_tokens=1500) as app:
        for forced in (
            {"tools": [WEATHER], "tool_choice": "required"},
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
            {"tools": [strict]},
        ):
            error = await error_of(app, CHAT, **forced)
            assert error["param"] == "tools" and "not supported with use_beam_search" in error["message"]
        response = await app.post(CHAT, BODIES[CHAT] | {"tools": [WEATHER], "n": 2})
        assert texts(response.json()) == BEAMS[:2]


async def test_reasoning_is_told_apart_in_every_beam_but_may_not_be_cut_off() -> None:
    async with serving_reasoner(THOUGHT) as app:
        for fields in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"thinking": False}}):
            response = await app.post(CHAT, BODIES[CHAT] | {**fields, "chat_template": "{{ messages[0].content }}"})
            [name] = fields
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, name) and "use_beam_search" in error["message"]
        assert app.engine.requests == []
        answer = (await app.post(CHAT, BODIES[CHAT] | {"max_tokens": 20})).json()
        assert answer["choices"][0]["message"]["reasoning"] == "he he"
        closed = BODIES[CHAT] | {"chat_template_kwargs": {"enable_thinking": False}}  # which this template knows
        assert (await app.post(CHAT, closed)).status_code == 200


async def test_a_search_needs_as_many_rows_as_it_is_wide() -> None:
    async with serve() as app:
        assert app.engine.description is not None
        app.engine.description.max_batch_size = 3
        error = await error_of(app, TEXT, n=4)
        message = "n asks for 4 beams, the server advances at most 3 at once (--max-batch-size)"
        assert (error["param"], error["message"]) == ("n", message)
        assert (await error_of(app, TEXT, n=2, best_of=4))["param"] == "best_of"
        assert (await app.post(TEXT, BODIES[TEXT] | {"n": 3})).status_code == 200


async def test_a_search_needs_a_logprob_for_each_beam_and_each_end() -> None:
    async with serve() as app:
        assert app.engine.description is not None
        app.engine.description.max_top_logprobs = 4
        error = await error_of(app, TEXT, n=4)
        needs = "n: 4 beams and 1 tokens that end a text need 5 logprobs of each step"
        assert (error["param"], error["message"]) == ("n", f"{needs}, the server lists 4 (--max-logprobs)")
        assert (await error_of(app, TEXT, n=3, stop_token_ids=[5]))["param"] == "stop_token_ids"
        for taken in ({"n": 3}, {"n": 4, "ignore_eos": True}, {"n": 3, "stop_token_ids": [EOS]}):
            assert (await app.post(TEXT, BODIES[TEXT] | taken)).status_code == 200


async def test_a_search_needs_an_allowed_token_for_each_beam() -> None:
    async with serve() as app:
        error = await error_of(app, TEXT, n=3, allowed_token_ids=[5, 6, 6, EOS])
        message = "allowed_token_ids holds 2 tokens that do not end the text, fewer than 3 beams"
        assert (error["param"], error["message"]) == ("allowed_token_ids", message)
        for taken in ({"allowed_token_ids": [5, 6, 7]}, {"allowed_token_ids": [5, 6, EOS], "ignore_eos": True}):
            assert (await app.post(TEXT, BODIES[TEXT] | {"n": 3} | taken)).status_code == 200


async def test_what_all_beams_list_must_fit_into_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.routes.openai.sampling.MAX_LISTED_ALTERNATIVES", 12)
    async with serve() as app:
        error = await error_of(app, TEXT, n=2, max_tokens=3, logprobs=3)
        listed = "logprobs asks for 3 logprobs beside each of up to 3 tokens of 2 beams"
        assert error["message"] == f"{listed}, at most 12 can be listed with beams: lower max_tokens"
        error = await error_of(app, CHAT, n=2, max_tokens=7, logprobs=True, top_logprobs=1)
        assert error["param"] == "top_logprobs"
        assert (await app.post(TEXT, BODIES[TEXT] | {"n": 2, "max_tokens": 3, "logprobs": 2})).status_code == 200


async def test_all_beams_must_fit_into_the_cache() -> None:
    """Pages of 16 tokens: with room for 96 tokens, each of 3 beams has 2 pages."""
    async with serve() as app:
        assert app.engine.description is not None
        app.engine.description.max_batch_total_tokens = 96
        error = await error_of(app, TEXT, n=3, max_tokens=31)
        room = "3 beams have room for 32 tokens each (--max-batch-total-tokens)"
        assert error["message"] == f"{room}, but 33 were requested: 2 in prompt and max_tokens 31"
        error = await error_of(app, TEXT, n=3, prompt="lo" * 32)
        assert error["message"] == f"{room}, at most 31 of them for the prompt, but prompt has 33 tokens"
        assert error["code"] == "context_length_exceeded"
        assert (await app.post(TEXT, BODIES[TEXT] | {"n": 3, "max_tokens": 30})).status_code == 200
        cut = {"n": 3, "prompt": "lo" * 40, "truncate_prompt_tokens": -1}
        assert (await app.post(TEXT, BODIES[TEXT] | cut)).status_code == 200
        assert [len(request.prompt) for request in app.engine.requests] == [2, 31]
        await app.post(CHAT, messages=[{"role": "user", "content": "lo"}], chat_template="lo", n=3, **SEARCH)
        assert app.engine.requests[-1].max_new_tokens == 31, "left open, it is what there is room for"


@pytest.mark.parametrize("start", [None, 1], ids=["decoder", "encoder and decoder"])
async def test_the_gateway_refuses_exactly_what_the_engine_would(start: int | None) -> None:
    async with serve(decoder_start_token_id=start) as app:
        described = app.engine.description
        assert described is not None
        seen = set()
        for rows, listed, tokens in itertools.product((2, 3, 8), (3, 5, 20), (64, 144, 1024)):
            limits = {"max_batch_size": rows, "max_top_logprobs": listed, "max_batch_total_tokens": tokens}
            described.MergeFrom(pb.Description(**limits))
            for n, length in itertools.product((1, 2, 3, 8), (1, 13, 14, 15, 29, 30, 31)):
                response = await app.post(TEXT, BODIES[TEXT] | {"n": n, "max_tokens": length})
                expected = accepts(replace(app.engine.mock.description, **limits), n, length)
                assert (response.status_code == 200) is expected, (limits, n, length, response.text)
                seen.add(expected)
        assert seen == {True, False}


def accepts(limits: Description, width: int, length: int) -> bool:
    """Whether an engine with `limits` takes a search after a prompt of two tokens."""
    sampling = pb.Sampling(top_p=1, typical_p=1, repetition_penalty=1)
    search = pb.BeamSearch(width=width, length_penalty=1)
    message = pb.Generate(prompt=[BOS, 5], max_new_tokens=length, sampling=sampling, beam_search=search)
    try:
        check_request(codec.request_from(message, 1), limits)
    except ValueError:
        return False
    return True

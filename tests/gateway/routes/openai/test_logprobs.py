"""Logprobs: one entry for each generated token, however its text ends and is sent; offsets that point into the text."""

import itertools
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routes.openai.logprobs import TokenNames, completion_logprobs, prompt_offsets
from gateway.text.tokenizer import Tokenizer
from jaxengine.rpc import engine_pb2 as pb
from tests.engine_mock import EOS
from tests.gateway.fixtures import HELLO, ServedApp, events, serve
from tests.gateway.toys import BOS, IM_END, IM_START, byte_level, sentencepiece

BYTES, PIECES = Tokenizer(byte_level()), Tokenizer(sentencepiece())
SPECIAL = {"</s>", "<s>", "<|im_start|>", "<|im_end|>"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "lo"}]}


def ids(text: str) -> list[int]:
    return BYTES.encode(text, add_special_tokens=False)


WORDS = st.sampled_from(["hello", " world", "stop", " a", "é", "€", "🙂", " ", "<|im_start|>", "<|im_end|>", "</s>"])
SCRIPTS = st.lists(WORDS, min_size=1, max_size=6).map(lambda words: ids("".join(words)))
PROMPTS = st.lists(WORDS, min_size=1, max_size=4).map("".join)
SETTINGS = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 20),
        "n": st.integers(1, 2),
        "stop": st.sampled_from([[], ["o w"], ["top", "ld"], ["lo", "€"], ["\ufffd"], ["🙂 "]]),
        "stop_token_ids": st.sampled_from([[], ids(" a"), [IM_END], ids("é")[-1:]]),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "ignore_eos": st.booleans(),
    }
)


async def streamed(app: ServedApp, path: str, body: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The chunks of each choice."""
    chunks = events(await app.post(path, {**body, "stream": True}))[:-1]
    found = [choice for chunk in chunks for choice in chunk["choices"]]
    return [[each for each in found if each["index"] == index] for index in range(body["n"])]


@given(script=SCRIPTS, fields=SETTINGS)
@settings(max_examples=60, deadline=None)
async def test_a_completions_logprobs_are_those_of_its_token_ids(script: list[int], fields: dict[str, Any]) -> None:
    named = {"logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}
    body = {"prompt": "lo", **fields, **named}
    async with serve(script) as app:
        answer = (await app.post("/v1/completions", body)).json()
        parts = await streamed(app, "/v1/completions", body)
    for choice, chunks in zip(answer["choices"], parts, strict=True):
        for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert len(choice["logprobs"][field]) == len(choice["token_ids"])
            assert [each for chunk in chunks for each in chunk["logprobs"][field]] == choice["logprobs"][field]
        assert choice["logprobs"]["tokens"] == [f"token_id:{id}" for id in choice["token_ids"]]
        assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
    assert sum(len(choice["token_ids"]) for choice in answer["choices"]) == answer["usage"]["completion_tokens"]


@given(script=SCRIPTS, fields=SETTINGS)
@settings(max_examples=25, deadline=None)
async def test_a_chats_logprobs_are_those_of_its_token_ids(script: list[int], fields: dict[str, Any]) -> None:
    body = {**CHAT, **fields, "logprobs": True, "return_token_ids": True, "return_tokens_as_token_ids": True}
    async with serve(script) as app:
        answer = (await app.post("/v1/chat/completions", body)).json()
        parts = await streamed(app, "/v1/chat/completions", body)
    for choice, chunks in zip(answer["choices"], parts, strict=True):
        content = choice["logprobs"]["content"]
        assert [entry["token"] for entry in content] == [f"token_id:{id}" for id in choice["token_ids"]]
        assert [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]] == content
        assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == choice["message"]["content"]
    assert sum(len(choice["token_ids"]) for choice in answer["choices"]) == answer["usage"]["completion_tokens"]


def assert_offsets_point_at_tokens(tokens: list[str], offsets: list[int], text: str) -> None:
    """Of tokens that are whole characters: each is what the text shows there, unless it is hidden or cut."""
    for token, (start, end) in zip(tokens, itertools.pairwise([*offsets, len(text)]), strict=True):
        assert start <= end or start >= len(text)
        shown = text[start:end]
        cut = token.startswith(shown) and start + len(token) > len(text)
        hidden = token in SPECIAL and not shown
        assert token.startswith("bytes:") or shown == token or cut or hidden, (token, shown)


@given(script=SCRIPTS, fields=SETTINGS, prompt=PROMPTS, as_ids=st.booleans(), echo=st.booleans())
@settings(max_examples=100, deadline=None)
async def test_offsets_point_into_the_text_that_is_answered(
    script: list[int], fields: dict[str, Any], prompt: str, as_ids: bool, echo: bool
) -> None:
    asked = [BOS, *ids(prompt)] if as_ids else prompt
    async with serve(script) as app:
        answer = await app.post("/v1/completions", {"prompt": asked, "logprobs": 0, "echo": echo, **fields})
    for choice in answer.json()["choices"]:
        logprobs = choice["logprobs"]
        assert_offsets_point_at_tokens(logprobs["tokens"], logprobs["text_offset"], choice["text"])
        if echo:
            assert choice["text"].startswith("<s>" + prompt if as_ids else prompt)


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["byte-level", "sentencepiece"])
@given(text=st.text(alphabet="helo wing.é日🙂\n", max_size=20), leads=st.booleans())
def test_offsets_of_a_prompt_point_into_its_text(tokenizer: Tokenizer, text: str, leads: bool) -> None:
    prompt = ([BOS if tokenizer is BYTES else 1] if leads else []) + tokenizer.encode(text, add_special_tokens=False)
    tokens = [tokenizer.token_text(id) for id in prompt]
    offsets = prompt_offsets(tokenizer, [pb.Token(id=id) for id in prompt], text)
    for token, (start, end) in zip(tokens, itertools.pairwise([*offsets, len(text)]), strict=True):
        shown = text[start:end]
        assert "\ufffd" in token or shown == token or token == " " + shown or (token in SPECIAL and not shown)


async def test_the_token_that_ended_the_text_is_listed_where_the_text_ends() -> None:
    async with serve() as app:
        [choice] = (await app.post("/v1/completions", prompt="lo", logprobs=0)).json()["choices"]
        assert choice["logprobs"]["tokens"] == ["hel", "lo", " w", "or", "ld", "</s>"]
        assert choice["logprobs"]["text_offset"] == [0, 3, 5, 7, 9, len("hello world")]


async def test_the_token_that_completes_a_stop_string_is_listed_whole() -> None:
    async with serve() as app:
        [choice] = (await app.post("/v1/completions", prompt="lo", logprobs=0, stop="lo w")).json()["choices"]
        assert choice["text"] == "hel"
        assert choice["logprobs"]["tokens"] == ["hel", "lo", " w"]


async def test_an_entry_does_not_wait_for_text_that_a_stop_string_may_cut() -> None:
    async with serve() as app:
        body = {"prompt": "lo", "logprobs": 0, "stop": " world!", "n": 1}
        [chunks] = await streamed(app, "/v1/completions", body)
        assert [chunk["text"] for chunk in chunks] == ["hel", "lo", "", "", "", " world"]
        assert [len(chunk["logprobs"]["tokens"]) for chunk in chunks] == [1] * 6


def drawing(app: ServedApp, id: int, logprob: float) -> None:
    """An engine that draws `id`, while `HELLO` were the likeliest in their order."""

    async def generate(request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
        likeliest = [pb.Alternative(id=each, logprob=-rank) for rank, each in enumerate(HELLO, 1)]
        token = pb.Token(id=id, logprob=logprob, rank=7, top=likeliest[: request.sampling.top_logprobs])
        known = [pb.Token(id=each, logprob=float("nan")) for each in request.prompt[:1]]
        yield pb.RequestEvent(tokens=[token], finish=pb.LENGTH, prompt=pb.Prompt(tokens=[*known, token]))

    app.engine.generate = generate  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("drawn", "logprob", "listed"),
    [("he", -9, {"he": -9, "hel": -1, "lo": -2}), ("lo", -2, {"lo": -2, "hel": -1})],
    ids=["beside the top", "among the top"],
)
async def test_the_drawn_token_comes_first_then_the_likeliest_by_rank(
    drawn: str, logprob: float, listed: dict[str, float]
) -> None:
    async with serve() as app:
        drawing(app, *ids(drawn), logprob)
        body = {"prompt": "lo", "logprobs": 2, "prompt_logprobs": 2, "max_tokens": 1}
        [choice] = (await app.post("/v1/completions", body)).json()["choices"]
        assert list(choice["logprobs"]["top_logprobs"][0].items()) == list(listed.items())
        known = choice["prompt_logprobs"][1].values()
        assert [(each["decoded_token"], each["logprob"]) for each in known] == list(listed.items())


def test_of_tokens_with_one_text_the_likeliest_counts() -> None:
    unknown = [pb.Alternative(id=1001, logprob=-1), pb.Alternative(id=1002, logprob=-2)]  # of no text
    token = pb.Token(id=1000, logprob=-9, top=unknown)
    assert completion_logprobs(TokenNames(BYTES, by_id=False), [token], [0], 2)["top_logprobs"] == [{"": -1}]


async def test_control_tokens_of_ids_are_echoed_and_counted() -> None:
    prompt = [BOS, IM_START, *ids("lo"), EOS]
    async with serve() as app:
        for skip in (True, False):
            body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 1, "skip_special_tokens": skip}
            [choice] = (await app.post("/v1/completions", body)).json()["choices"]
            assert choice["text"] == "<s><|im_start|>lo</s>hel"
            assert choice["logprobs"]["text_offset"] == [0, 3, 15, 17, 21]


async def test_control_tokens_of_a_text_are_counted_but_not_those_put_before_it() -> None:
    async with serve() as app:
        body = {"prompt": "<|im_start|>lo", "echo": True, "logprobs": 0, "max_tokens": 1}
        [choice] = (await app.post("/v1/completions", body)).json()["choices"]
        assert choice["text"] == "<|im_start|>lohel"
        assert choice["logprobs"]["tokens"] == ["<s>", "<|im_start|>", "lo", "hel"]
        assert choice["logprobs"]["text_offset"] == [0, 0, 12, 14]


@pytest.mark.parametrize(("keep", "echo"), [(-1, "<|im_start|>hello<|im_end|>"), (2, "lo<|im_end|>")])
async def test_what_is_left_of_a_truncated_text_is_echoed_with_its_control_tokens(keep: int, echo: str) -> None:
    async with serve() as app:
        prompt = "<|im_start|>hello<|im_end|>"
        body = {"prompt": prompt, "echo": True, "max_tokens": 1, "truncate_prompt_tokens": keep}
        [choice] = (await app.post("/v1/completions", body)).json()["choices"]
        assert choice["text"] == echo + "hel"

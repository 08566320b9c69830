"""Several tokens come in one event of an engine that speculates: the same answers as from one that gives one by one."""

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.engine_mock import EOS
from tests.gateway.fixtures import HELLO, events, serve
from tests.gateway.routes.openai.test_chat import USER, deltas
from tests.gateway.routes.openai.test_reasoning import THINKING, THOUGHT
from tests.gateway.routes.openai.tool_chats import PARIS, PATH, ROME, TIME, WEATHER, joined, script
from tests.gateway.toys import byte_level

RUNS = (2, 3, 7)  # tokens an event
TEXT = "hello world"
STOPS = [TEXT[start:end] for start in range(len(TEXT)) for end in (start + 1, start + 4)]
EMOJI = [*byte_level().encode("a🙂é hello", add_special_tokens=False).ids, EOS]  # characters of several tokens
OWN = re.compile(r'"(cmpl|chatcmpl)-[^"]*"|call_\w+|"created":\d+|"system_fingerprint":"[^"]*"')  # of one answer

Reads = Callable[[httpx.Response], Any]


def whole(answer: httpx.Response) -> Any:
    """Everything but ids and times."""
    assert answer.status_code == 200, answer.text
    return OWN.sub("", answer.text)


def completion(answer: httpx.Response) -> Any:
    """The chunks of each choice put together, and the usage."""
    *chunks, usage, done = events(answer)
    assert done == "[DONE]" and usage["choices"] == []
    merged: dict[int, dict[str, Any]] = {}
    for [choice] in (chunk["choices"] for chunk in chunks):
        into = merged.setdefault(choice["index"], {"text": "", "token_ids": [], "logprobs": {}})
        into["text"] += choice["text"]
        into["token_ids"] += choice.get("token_ids", [])
        for name, values in (choice["logprobs"] or {}).items():
            into["logprobs"].setdefault(name, []).extend(values)
        into["end"] = [into.get("end"), choice["finish_reason"], choice.get("stop_reason")][-2:]
    return merged, usage["usage"]


def chat(answer: httpx.Response) -> Any:
    """The message that the deltas add up to, the logprobs, the end and the usage."""
    *chunks, usage, done = events(answer)
    assert done == "[DONE]" and usage["choices"] == []
    stream = deltas([*chunks, done])
    message = joined(stream)
    for call in message.get("calls", ()):
        call["id"] = call["id"][:5]
    logprobs = [entry for each in stream if each["logprobs"] for entry in each["logprobs"]["content"]]
    return message, logprobs, stream[-1]["finish_reason"], stream[-1]["stop_reason"], usage["usage"]


async def answers(
    ids: list[int], run: int, path: str, bodies: list[dict[str, Any]], read: Reads, **served: Any
) -> list[Any]:
    async with serve(ids, tokens_per_step=run, **served) as app:
        return [read(await app.post(path, body)) for body in bodies]


async def assert_same(ids: list[int], path: str, bodies: list[dict[str, Any]], read: Reads, **served: Any) -> None:
    one_by_one = await answers(ids, 1, path, bodies, read, **served)
    for run in RUNS:
        found = await answers(ids, run, path, bodies, read, **served)
        for body, expected, got in zip(bodies, one_by_one, found, strict=True):
            assert got == expected, (run, body)


def generate_bodies() -> list[dict[str, Any]]:
    shown = {"details": True, "top_n_tokens": 2}
    stops = [{"stop": [stop], "max_new_tokens": 9, **shown} for stop in STOPS]
    lengths = [{"max_new_tokens": count, **shown} for count in range(1, 9)]
    several = [{"stop": ["world", "o w"], **shown}, {"stop": ["lo"], "max_new_tokens": 2}, {}]
    return [{"inputs": "lo", "parameters": each} for each in (*stops, *lengths, *several)]


@pytest.mark.parametrize("ids", [HELLO, EMOJI], ids=["words", "characters of several tokens"])
async def test_tgis_answers_are_the_same_and_its_streams_byte_by_byte(ids: list[int]) -> None:
    """Which means that a stream has an event for each token."""
    await assert_same(ids, "/generate", generate_bodies(), whole)
    await assert_same(ids, "/generate_stream", generate_bodies(), whole)


async def test_prompt_tokens_and_the_best_of_two_are_the_same() -> None:
    shown = {"details": True, "decoder_input_details": True, "max_new_tokens": 5}
    bodies = [{"inputs": "lo", "parameters": {**shown, "do_sample": True, "best_of": 2}}]

    def unseeded(answer: httpx.Response) -> Any:
        return re.sub(r'"seed":\d+', "", whole(answer))

    await assert_same(HELLO, "/generate", bodies, unseeded, enable_prefill_logprobs=True)


def completion_bodies(**shown: Any) -> list[dict[str, Any]]:
    cuts = [{"stop": stop, "include_stop_str_in_output": n % 3 == 0} for n, stop in enumerate(STOPS)]
    ends = [{"stop": ["world", "o w"]}, {"stop": "lo", "min_tokens": 3}, {"stop_token_ids": HELLO[1:2]}, {"n": 2}]
    ends += [{"ignore_eos": True, "skip_special_tokens": False, "max_tokens": 20}, {"max_tokens": 1}]
    return [{"max_tokens": 9, **shown, **each} for each in (*cuts, *ends)]


@pytest.mark.parametrize("shown", [{}, {"logprobs": 2, "return_token_ids": True, "echo": True}], ids=["plain", "shown"])
async def test_completions_are_the_same(shown: dict[str, Any]) -> None:
    bodies = completion_bodies(prompt="lo", **shown)
    for ids in (HELLO, EMOJI):
        await assert_same(ids, "/v1/completions", bodies, whole)
        streams = [{**body, "stream": True, "stream_options": {"include_usage": True}} for body in bodies]
        await assert_same(ids, "/v1/completions", streams, completion)


@pytest.mark.parametrize("shown", [{}, {"logprobs": True, "top_logprobs": 2}], ids=["plain", "shown"])
async def test_chats_are_the_same(shown: dict[str, Any]) -> None:
    bodies = [body for body in completion_bodies(messages=USER, **shown) if "n" not in body]
    await assert_same(HELLO, PATH, bodies, whole)
    streams = [{**body, "stream": True, "stream_options": {"include_usage": True}} for body in bodies]
    await assert_same(HELLO, PATH, streams, chat)


TOOLS = {"messages": USER, "tools": [WEATHER, TIME]}
CUTS = [{}, {"stop": "Pa"}, {"stop": "name"}, {"max_tokens": 25}, {"stop": "\n</tool"}]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("hello " + PARIS + "\n" + ROME, TOOLS),
        (PARIS, {**TOOLS, "parallel_tool_calls": False, "tool_choice": "required"}),
        (THOUGHT, {"messages": USER, "logprobs": True}),
        (THOUGHT + "\n" + PARIS, {**TOOLS, "include_reasoning": False}),
    ],
    ids=["two calls", "a forced call", "reasoning", "reasoning that is not shown and a call"],
)
async def test_calls_and_reasoning_are_the_same_and_so_is_the_count_of_reasoning_tokens(
    text: str, fields: dict[str, Any]
) -> None:
    served = {"template": THINKING, "max_total_tokens": 1500}
    bodies = [{**fields, **each} for each in CUTS]
    await assert_same(script(text), PATH, bodies, whole, **served)
    streams = [{**body, "stream": True, "stream_options": {"include_usage": True}} for body in bodies]
    await assert_same(script(text), PATH, streams, chat, **served)


async def test_a_joined_chunk_counts_its_tokens_in_continuous_usage() -> None:
    usage = {"include_usage": True, "continuous_usage_stats": True}
    async with serve(tokens_per_step=3) as app:
        stream = events(await app.post("/v1/completions", prompt="lo", stream=True, stream_options=usage))
    assert [chunk["usage"]["completion_tokens"] for chunk in stream[:-1]] == [1, 4, 6, 6]

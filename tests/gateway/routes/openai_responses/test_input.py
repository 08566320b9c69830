"""What the items of an input become in the prompt, and which are refused."""

from typing import Any

import pytest

from gateway.routes.openai_responses.conversation import messages
from gateway.routes.openai_responses.input_items import sealed
from tests.gateway.routes.openai.test_reasoning import THINKING
from tests.gateway.routes.openai.tool_chats import PATH as CHATS
from tests.gateway.routes.openai_responses.scripted import WEATHER, create, prompt_of, prompted, refused, serving

USER = {"role": "user", "content": "lo"}
CALL = {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": '{"city": "Paris"}'}
RESULT = {"type": "function_call_output", "call_id": "a", "output": "22 C"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "he"}]}
ANSWER = {
    "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "hello", "annotations": []}],
}  # fmt: skip
FUNCTION = {key: value for key, value in WEATHER.items() if key != "type"}
CALLED = [{"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]
WITH_REASONING = THINKING.replace("{{ m.content }}", "{{ m.reasoning_content or '' }}|{{ m.content }}")

# By name, an input, and the messages of the chat with the same prompt.
SAME: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "a text": ({"input": "lo"}, [USER]),
    "a message": ({"input": [USER]}, [USER]),
    "its full form": (
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "lo"}]}]},
        [USER],
    ),
    "parts": (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": each} for each in "ab"]}]},
        [{"role": "user", "content": "a\nb"}],
    ),
    "an earlier answer": ({"input": [USER, ANSWER, USER]}, [USER, {"role": "assistant", "content": "hello"}, USER]),
    "an earlier answer in short": (
        {"input": [USER, {"role": "assistant", "content": "hello"}, USER]},
        [USER, {"role": "assistant", "content": "hello"}, USER],
    ),
    "a refusal": (
        {"input": [USER, {**ANSWER, "content": [{"type": "refusal", "refusal": "no"}]}, USER]},
        [USER, {"role": "assistant", "content": "no"}, USER],
    ),
    "a turn of reasoning, text and calls": (
        {"input": [USER, REASONING, ANSWER, CALL, RESULT]},
        [
            USER,
            {"role": "assistant", "reasoning": "he", "content": "hello", "tool_calls": CALLED},
            {"role": "tool", "tool_call_id": "a", "content": "22 C"},
        ],
    ),
    "two turns": (
        {"input": [USER, CALL, RESULT, ANSWER]},
        [
            USER,
            {"role": "assistant", "tool_calls": CALLED},
            {"role": "tool", "tool_call_id": "a", "content": "22 C"},
            {"role": "assistant", "content": "hello"},
        ],
    ),
    "a result in parts": (
        {"input": [USER, CALL, {**RESULT, "output": [{"type": "input_text", "text": "22 C"}]}]},
        [USER, {"role": "assistant", "tool_calls": CALLED}, {"role": "tool", "tool_call_id": "a", "content": "22 C"}],
    ),
    "a summary in place of the content": (
        {"input": [USER, {**REASONING, "content": None, "summary": [{"type": "summary_text", "text": "he"}]}, ANSWER]},
        [USER, {"role": "assistant", "reasoning": "he", "content": "hello"}],
    ),
    "reasoning that says nothing": (
        {"input": [USER, {"type": "reasoning", "summary": []}, USER, {"type": "reasoning", "summary": []}, ANSWER]},
        [USER, USER, {"role": "assistant", "content": "hello"}],
    ),
    "sealed reasoning": (
        {"input": [USER, {"type": "reasoning", "summary": [], "encrypted_content": sealed("he")}, ANSWER]},
        [USER, {"role": "assistant", "reasoning": "he", "content": "hello"}],
    ),
    "instructions": ({"input": "lo", "instructions": "be"}, [{"role": "system", "content": "be"}, USER]),
    "instructions before others": (
        {"input": [{"role": "developer", "content": "so"}, USER], "instructions": "be"},
        [{"role": "system", "content": "be\n\nso"}, USER],
    ),
    "instructions within": (
        {"input": [USER, {"role": "system", "content": "so"}], "instructions": "be"},
        [{"role": "system", "content": "be"}, USER, {"role": "system", "content": "so"}],
    ),
}


@pytest.mark.parametrize("name", SAME)
async def test_the_prompt_is_that_of_the_same_chat(name: str) -> None:
    fields, chat = SAME[name]
    async with serving(template=WITH_REASONING) as app:
        await create(app, **fields, tools=[WEATHER], reasoning={"effort": "low"})
        tools = [{"type": "function", "function": FUNCTION}]
        answer = await app.post(CHATS, {"messages": chat, "tools": tools, "reasoning_effort": "low"})
        assert answer.status_code == 200, answer.text
        assert prompt_of(app, 0) == prompt_of(app, 1)


def test_calls_side_by_side_are_of_one_message() -> None:
    items = [{**CALL, "call_id": id} for id in "ab"] + [{**RESULT, "call_id": id} for id in "ab"]
    told = messages(None, items)
    assert [each["role"] for each in told] == ["assistant", "tool", "tool"]
    assert [call["id"] for call in told[0]["tool_calls"]] == ["a", "b"]


async def test_no_reasoning_is_asked_for_by_its_effort() -> None:
    assert "[THINK]\n\n[/THINK]" in await prompted(reasoning={"effort": "none"})
    assert "[THINK]" not in await prompted()


REFUSED: dict[str, tuple[Any, str]] = {
    "an image": ([{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}], "reads no images"),
    "a file": ([{"role": "user", "content": [{"type": "input_file", "file_id": "a"}]}], "input_file"),
    "audio": ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], "input_audio"),
    "an image as a result": ([USER, CALL, {**RESULT, "output": [{"type": "input_image"}]}], "input_image"),
    "a call of a computer": ([USER, {"type": "computer_call", "id": "a"}], "computer_call"),
    "a search": ([USER, {"type": "web_search_call", "id": "a"}], "web_search_call"),
    "a custom tool's call": ([USER, {"type": "custom_tool_call", "id": "a"}], "custom_tool_call"),
    "a compaction": ([USER, {"type": "compaction", "encrypted_content": "a"}], "compaction"),
    "nothing that is known": ([USER, {}], "items of this type"),
    "another server's secret": ([USER, {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}], "encrypted"),
    "another role": ([{"role": "tool", "content": "a"}], "must be"),
    "a call without a name": ([USER, {**CALL, "name": None}], "name"),
    "a part without a text": ([{"role": "user", "content": [{"type": "input_text"}]}], "needs its text"),
    "nothing": ([], "is empty"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_be_put_into_a_prompt_is_refused_by_name(name: str) -> None:
    given, said = REFUSED[name]
    error = await refused(input=given)
    assert said in error["message"] and error["param"].startswith("input"), error


async def test_an_input_is_needed() -> None:
    assert (await refused(input=None))["param"] == "input"


async def test_a_refusal_repeats_no_text_of_the_client() -> None:
    error = await refused(input=[{"role": "user", "content": [{"type": "CANARY", "text": "CANARY"}]}])
    assert "CANARY" not in str(error)

"""What the model is told of a conversation, and that its tokens are counted as they are read."""

from typing import Any

import pytest

from tests.gateway.routes.anthropic.conversations import ASK, PATH, THINKING, USER, WEATHER, prompt_of, refused, serving

CALL = {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Paris"}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "22 C"}
BEGIN = "<|im_start|>assistant\n"


def said(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": each, "cache_control": {"type": "ephemeral"}} for each in texts]


@pytest.mark.parametrize("content", ["he", text("he")])
async def test_a_text_is_told_as_a_string_or_as_blocks(content: Any) -> None:
    assert await prompt_of(messages=[{"role": "user", "content": content}]) == said("user", "he") + BEGIN


@pytest.mark.parametrize("system", ["one\ntwo", text("one", "two")])
async def test_the_system_is_told_first(system: Any) -> None:
    assert await prompt_of(system=system) == said("system", "one\ntwo") + said("user", "lo") + BEGIN


async def test_what_the_system_says_later_is_told_at_the_begin_where_every_template_takes_it() -> None:
    messages = [*USER, {"role": "system", "content": "later"}, {"role": "user", "content": "he"}]
    told = said("system", "first\nlater") + said("user", "lo") + said("user", "he") + BEGIN
    assert await prompt_of(system="first", messages=messages) == told


async def test_the_line_of_claude_code_that_differs_each_time_is_dropped() -> None:
    system = text("x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;", "be kind")
    assert (await prompt_of(system=system)).startswith(said("system", "be kind"))


async def test_results_are_messages_of_their_own_before_the_text_beside_them() -> None:
    messages = [
        *USER,
        {"role": "assistant", "content": [*text("he"), CALL, {**CALL, "id": "b"}]},
        {"role": "user", "content": [RESULT, *text("and"), {**RESULT, "tool_use_id": "b", "content": text("3", "C")}]},
    ]
    prompt = await prompt_of(messages=messages)
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    answered = said("assistant", "he" + call + call)
    assert (
        prompt
        == said("user", "lo") + answered + said("tool", "22 C") + said("tool", "3\nC") + said("user", "and") + BEGIN
    )


async def test_a_result_says_that_it_is_an_error() -> None:
    messages = [
        *USER,
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [{**RESULT, "is_error": True}]},
    ]
    assert said("tool", "Error: 22 C") in await prompt_of(messages=messages)


async def test_a_result_may_be_empty() -> None:
    empty = {"type": "tool_result", "tool_use_id": "a"}
    messages = [*USER, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [empty]}]
    assert (await prompt_of(messages=messages)).endswith(said("tool", "") + BEGIN)


async def test_earlier_thinking_reaches_the_template_and_what_is_redacted_does_not() -> None:
    template = THINKING.replace("{{ m.content }}", "{{ m.reasoning_content or '' }}|{{ m.content }}")
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "redacted_thinking", "data": "c2VjcmV0"},
        *text("he"),
    ]
    messages = [*USER, {"role": "assistant", "content": blocks}, *USER]
    prompt = await prompt_of(template, messages=messages)
    assert said("assistant", "hm|he") in prompt and "c2VjcmV0" not in prompt


@pytest.mark.parametrize("content", ["he", text("he")])
async def test_the_answer_goes_on_with_a_last_message_by_the_assistant(content: Any) -> None:
    prompt = await prompt_of(messages=[*USER, {"role": "assistant", "content": content}])
    assert prompt == said("user", "lo") + BEGIN + "he"


@pytest.mark.parametrize("content", ["", []])
async def test_a_last_message_without_text_begins_no_answer(content: Any) -> None:
    assert await prompt_of(messages=[*USER, {"role": "assistant", "content": content}]) == said("user", "lo") + BEGIN


async def test_a_last_message_with_calls_is_refused() -> None:
    assert "results must follow" in await refused(messages=[*USER, {"role": "assistant", "content": [CALL]}])


async def test_tools_are_shown_as_functions_with_their_schema() -> None:
    hinted = {
        **WEATHER,
        "type": "custom",
        "strict": True,
        "cache_control": {"type": "ephemeral"},
        "defer_loading": False,
    }
    prompt = await prompt_of(tools=[hinted])
    assert '"parameters": {"type": "object", "properties": {"city"' in prompt and "of a city" in prompt
    assert "cache_control" not in prompt and "strict" not in prompt


@pytest.mark.parametrize(
    ("thinking", "effort", "variables"),
    [
        (None, None, "None None"),
        ({"type": "enabled", "budget_tokens": 5}, None, "True None"),
        ({"type": "adaptive"}, "low", "True low"),
        ({"type": "disabled"}, "low", "False none"),
        (None, "max", "None high"),
    ],
)
async def test_thinking_and_effort_are_variables_of_the_template(thinking: Any, effort: Any, variables: str) -> None:
    shown = "{{ enable_thinking if enable_thinking is defined else None }} {{ reasoning_effort or None }}"
    fields = {"thinking": thinking, "output_config": {"effort": effort}}
    assert (await prompt_of(THINKING + shown, **fields)).endswith(variables)


async def test_a_clients_own_variables_win() -> None:
    shown = "{{ enable_thinking }} {{ mood }}"
    variables = {"mood": "glad", "enable_thinking": False, "thinking": False}
    prompt = await prompt_of(THINKING + shown, thinking={"type": "adaptive"}, chat_template_kwargs=variables)
    assert prompt.endswith("False glad")


async def test_a_budget_bounds_thinking() -> None:
    async with serving(template=THINKING) as app:
        await app.post(PATH, {**ASK, "thinking": {"type": "enabled", "budget_tokens": 7}})
        assert app.engine.requests[0].reasoning.budget == 7


async def test_a_model_that_does_not_reason_keeps_every_budget() -> None:
    async with serving() as app:
        response = await app.post(PATH, {**ASK, "thinking": {"type": "enabled", "budget_tokens": 1024}})
    assert response.status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "be kind"},
        {"tools": [WEATHER]},
        {"tools": [WEATHER], "tool_choice": {"type": "none"}},
        {"thinking": {"type": "disabled"}},
        {"messages": [*USER, {"role": "assistant", "content": "he"}]},
    ],
)
async def test_as_many_tokens_are_counted_as_a_message_reads(fields: dict[str, Any]) -> None:
    async with serving(template=THINKING) as app:
        asked = {"model": "tgi", "messages": USER, **fields}
        counted = await app.post(f"{PATH}/count_tokens", asked)
        assert not app.engine.requests and counted.headers["request-id"]
        usage = (await app.post(PATH, {**asked, "max_tokens": 3})).json()["usage"]
    assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


async def test_counting_needs_no_permit() -> None:
    async with serving() as app:
        with app.gateway.admission.request(16):
            assert (await app.post(PATH, ASK)).status_code == 429
            counted = await app.post(f"{PATH}/count_tokens", {"model": "tgi", "messages": USER})
    assert counted.status_code == 200

"""What a model is told of tools, of earlier calls and of their results."""

import json
from typing import Any

import pytest

from gateway.text.tools_in_text import INSTRUCTION, SEPARATOR
from tests.gateway.fixtures import events
from tests.gateway.routes.openai.test_chat import USER, deltas
from tests.gateway.routes.openai.tool_chats import HERMES, HISTORY, PATH, WEATHER, joined, prompt_of, serving


async def test_the_template_gets_the_tools_as_the_client_wrote_them() -> None:
    odd = {"type": "function", "function": {"description": "first", "name": "f", "strict": True, "returns": "x"}}
    shown = {"type": "function", "function": {"description": "first", "name": "f", "returns": "x"}}
    shown["function"]["parameters"] = {"type": "object", "properties": {}}
    assert f"<tool_call> {json.dumps([WEATHER, shown])}" in await prompt_of(tools=[WEATHER, odd])
    assert "first" not in await prompt_of(tools=[WEATHER, odd], tool_choice="none")


async def test_a_template_without_tools_is_told_of_them_behind_the_last_message() -> None:
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    prompt = await prompt_of(template, tools=[WEATHER])
    assert prompt == f"[user] lo{SEPARATOR}{INSTRUCTION}\n{json.dumps([WEATHER['function']])}\n"
    prompt = await prompt_of(template, tools=[WEATHER], tool_prompt="Use these:")
    assert prompt.startswith(f"[user] lo{SEPARATOR}Use these:\n[")
    prompt = await prompt_of(tools=[WEATHER], tool_prompt="Think first.")
    assert f"lo{SEPARATOR}Think first.<|im_end|>" in prompt


OLDER: list[dict[str, Any]] = [
    *USER,
    {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": '{"city": "Paris"}'}},
    {"role": "function", "name": "get_weather", "content": "22 C"},
]


@pytest.mark.parametrize("messages", [HISTORY, OLDER], ids=["tools", "functions"])
async def test_calls_and_results_of_the_history_reach_the_template(messages: list[dict[str, Any]]) -> None:
    prompt = await prompt_of(messages=messages, tools=[WEATHER])
    assert '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>' in prompt
    assert "<|im_start|>assistant\n<tool_call>" in prompt and "<|im_start|>tool\n22 C" in prompt


@pytest.mark.parametrize("arguments", ["not JSON", '{"a": NaN}', "[1]", '{"a": "\\ud800"}', "[" * 1200])
async def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    messages = json.loads(json.dumps(HISTORY))
    messages[1]["tool_calls"][0]["function"]["arguments"] = arguments
    prompt = await prompt_of(messages=messages, template=HERMES.replace("c.function | tojson", "c.function.arguments"))
    assert f"<tool_call>{arguments}</tool_call>" in prompt


async def test_tokenizing_a_chat_takes_its_tools_too() -> None:
    async with serving() as app:
        body = {"messages": USER, "tools": [WEATHER]}
        await app.post(PATH, body)
        prompt = list(app.engine.requests[0].prompt)
        assert (await app.post("/tokenize", body)).json()["tokens"] == prompt
        assert "get_weather" in (await app.post("/chat_tokenize", body)).json()["templated_text"]


async def test_tgis_name_of_the_parameters_is_understood() -> None:
    function = {"name": "f", "arguments": WEATHER["function"]["parameters"]}  # type: ignore[index]
    prompt = await prompt_of(tools=[{"type": "function", "function": function}])
    assert json.dumps({"name": "f", "parameters": function["arguments"]}) in prompt
    for parameters in (None, function["arguments"]):
        both = {"name": "f", "parameters": parameters, "arguments": function["arguments"]}
        prompt = await prompt_of(tools=[{"type": "function", "function": both}])
        assert json.dumps({"name": "f", "parameters": function["arguments"]}) in prompt


async def test_an_argument_that_a_model_writes_twice_counts_as_it_was_last_written() -> None:
    tagged = "<tool_call>\n<function=get_weather>\n{}</function>\n</tool_call>"
    city = "<parameter=city>\n{}\n</parameter>\n"
    text = tagged.format(city.format("Paris") + city.format("Rome"))
    async with serving(text, tool_call_parser="qwen3_coder") as app:
        whole = (await app.post(PATH, messages=USER, tools=[WEATHER])).json()["choices"][0]["message"]
        stream = events(await app.post(PATH, messages=USER, tools=[WEATHER], stream=True))
    arguments = whole["tool_calls"][0]["function"]["arguments"]
    assert joined(deltas(stream))["calls"][0]["arguments"] == arguments
    assert json.loads(arguments) == {"city": "Rome"}
    prompt = await prompt_of(messages=[*USER, whole | {"content": None}])
    assert '"arguments": {"city": "Rome"}}</tool_call>' in prompt

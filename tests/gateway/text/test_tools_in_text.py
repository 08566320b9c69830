"""Tools, calls and results in prompts: through the template as in transformers, in words where it has no place."""

import json
from typing import Any

import pytest

from gateway.text.tools_in_text import INSTRUCTION, SEPARATOR
from tests.gateway.text.test_chat_template import reference, render

TOOL = {"name": "get_weather", "description": "of a city", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": TOOL}]
ARGUMENTS = {"city": "Paris"}
CALL = {"id": "callabcde", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
RESULT = {"role": "tool", "tool_call_id": "callabcde", "content": "22 C"}
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    RESULT,
]
PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }};{% endfor %}"
OF_TOOLS = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %};"
    "{% endfor %}"
)
# As OF_TOOLS, but calls are shown only if ...
NO_TEXT = OF_TOOLS.replace("m.tool_calls or []", "m.content is none and m.tool_calls or []")
OF_TEXT = OF_TOOLS.replace("c.function.arguments | tojson", "'!' + c.function.arguments")
TURNS = "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('who?') }}{% endif %}"
TURNS += "[{{ m.role }}] {{ m.content }};{% endfor %}"


def test_a_template_that_knows_tools_renders_them_as_in_transformers() -> None:
    assert render(OF_TOOLS, CHAT, tools=TOOLS) == reference(OF_TOOLS, CHAT, tools=TOOLS)


def test_a_template_that_looks_for_null_content_gets_it() -> None:
    assert 'callabcde get_weather {"city": "Paris"};[tool] 22 C;' in render(NO_TEXT, CHAT)


def test_a_template_that_adds_arguments_to_text_gets_them_as_json() -> None:
    assert 'get_weather !{"city": "Paris"};' in render(OF_TEXT, CHAT)


@pytest.mark.parametrize("prompt", [None, "Use these:"])
def test_tools_that_a_template_does_not_show_are_told_behind_the_last_message(prompt: str | None) -> None:
    told = f"{SEPARATOR}{prompt or INSTRUCTION}\n{json.dumps([TOOL])};"
    assert render(PLAIN, CHAT[:1], tools=TOOLS, tool_prompt=prompt) == f"[user] hello{told}"
    answered = [*CHAT[:1], {"role": "assistant", "content": "Well"}]
    assert render(PLAIN, answered, tools=TOOLS, tool_prompt=prompt) == f"[user] hello{told}[assistant] Well;"
    only = render(PLAIN, answered[1:], tools=TOOLS, tool_prompt=prompt)
    assert only == f"[system] {told.removeprefix(SEPARATOR)}[assistant] Well;"


def test_an_own_prompt_is_said_beside_tools_that_are_shown() -> None:
    assert f"hello{SEPARATOR}Think.;" in render(OF_TOOLS, CHAT[:1], tools=TOOLS, tool_prompt="Think.")


def test_calls_that_a_template_does_not_show_are_written_as_the_model_was_told_to() -> None:
    call = json.dumps([{"name": "get_weather", "parameters": ARGUMENTS}])
    assert render(PLAIN, CHAT) == f"[user] hello;[assistant] {call};[tool] 22 C;"
    said = [CHAT[0], {**CHAT[1], "content": "Let me see"}]
    assert render(PLAIN, said) == f"[user] hello;[assistant] Let me see\n{call};"


def test_calls_are_tagged_where_the_template_knows_the_tag() -> None:
    tagged = f"<tool_call>\n{json.dumps({'name': 'get_weather', 'arguments': ARGUMENTS})}\n</tool_call>"
    assert tagged in render(PLAIN + "{# <tool_call> #}", CHAT)


def test_results_are_told_by_the_user_where_there_is_no_role_for_them() -> None:
    second = {**RESULT, "name": "get_time", "content": "noon"}
    rendered = render(TURNS, [*CHAT, second, {"role": "assistant", "content": "Fine"}])
    assert rendered.endswith("[user] Result: 22 C\nResult of get_time: noon;[assistant] Fine;")


def test_a_message_with_calls_can_be_continued() -> None:
    chat = [CHAT[0], {**CHAT[1], "content": "Let"}]
    assert render(OF_TOOLS, chat, continue_final_message=True) == "[user] hello;[assistant] Let"

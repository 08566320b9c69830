"""Chats in-process: the prompt is what the model's template makes of them, with tools and without."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from jaxengine.llm import LLM
from tests.jaxengine.llm.greedy import GREEDY
from tests.tiny import tokenizer

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{{ '[assistant]' * add_generation_prompt }}"
)
OF_PARTS = (  # as of models that see: plain text is none of the parts it looks for
    "{% for m in messages %}[{{ m.role }}] {% for part in m.content if part.type == 'text' %}{{ part.text }}\n"
    "{% endfor %}{% endfor %}{{ '[assistant]' * add_generation_prompt }}"
)
CHANGED = TEMPLATE.replace("m.content", "m.content | capitalize")  # shows no text as it is given, nor parts
CHAT = [{"role": "user", "content": "The quick brown fox"}]


@pytest.mark.parametrize("template", [TEMPLATE, OF_PARTS, CHANGED])
def test_a_chat_is_the_prompt_that_the_models_template_makes_of_it(
    template: str, llm: LLM, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").write_text(template)
    monkeypatch.setattr(llm, "directory", tmp_path)
    monkeypatch.delitem(vars(llm), "_template", raising=False)
    rendered = tokenizer().encode("[user] The quick brown fox\n[assistant]", add_special_tokens=False)
    (one,) = llm.chat(CHAT, GREEDY)
    assert one.prompt_ids == rendered
    assert one.token_ids == llm.generate(rendered, GREEDY)[0].token_ids
    assert [each.token_ids for each in llm.chat([CHAT, CHAT], GREEDY)] == [one.token_ids] * 2


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
WITH_TOOLS = "{% for tool in tools or [] %}<tool>{{ tool | tojson }}</tool>\n{% endfor %}" + TEMPLATE
CALLED = [
    *CHAT,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"in": "Rome"}'}}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "sunny"},
]
SHOWS_CALLS = WITH_TOOLS.replace(
    "{{ m.content }}", "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"
)


NAMES_TOOLS = "{% for tool in tools or [] %}{{ (tool.function or tool).name }}{% endfor %}"
GIVEN = {"in": "Rome"}  # what the call's arguments mean: transformers is told it so


@pytest.mark.parametrize("messages", [CHAT, CALLED], ids=["asked", "called"])
def test_tools_are_told_as_transformers_tells_them(llm: LLM, messages: list[dict[str, Any]]) -> None:
    reference, meant = tokenizer(), copy.deepcopy(messages)
    for message in meant:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = GIVEN
    reference.chat_template = SHOWS_CALLS
    expected = reference.apply_chat_template(meant, tools=TOOLS, add_generation_prompt=True, tokenize=False)
    assert llm._prompt_of(messages, TOOLS, chat_template=SHOWS_CALLS).text == expected
    assert "weather" in expected


def test_tools_are_put_into_words_where_the_template_has_no_place_for_them(llm: LLM) -> None:
    text = llm._prompt_of(CALLED, TOOLS, chat_template=TEMPLATE).text
    assert text is not None and '"name": "weather"' in text and "sunny" in text


def test_a_chat_with_tools_is_answered_whole_and_in_pieces(llm: LLM) -> None:
    how = {"tools": [{"name": "f"}], "chat_template": NAMES_TOOLS + TEMPLATE}
    (one,) = llm.chat(CHAT, GREEDY, **how)
    assert one.prompt == "f[user] The quick brown fox\n[assistant]"
    assert "".join(llm.stream_chat(CHAT, GREEDY, **how)) == one.text


def test_a_chat_goes_on_with_its_last_message_and_takes_what_else_the_template_reads(llm: LLM) -> None:
    begun = [*CHAT, {"role": "assistant", "content": "jumps"}]
    how = {"add_generation_prompt": False, "continue_final_message": True}
    (one,) = llm.chat(
        begun, GREEDY, chat_template="{{ mood }}" + TEMPLATE, chat_template_kwargs={"mood": "glad"}, **how
    )
    assert one.prompt == "glad[user] The quick brown fox\n[assistant] jumps"
    with pytest.raises(ValueError, match="continue_final_message needs add_generation_prompt=False"):
        llm.chat(begun, GREEDY, chat_template=TEMPLATE, continue_final_message=True)
    with pytest.raises(ValueError, match="arguments of the call of 'f' must be JSON"):
        llm.chat(
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            chat_template=TEMPLATE,
        )


def test_a_model_without_a_template_has_no_chats(
    llm: LLM, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(directory / "tokenizer.json", tmp_path)
    monkeypatch.setattr(llm, "directory", tmp_path)
    monkeypatch.delitem(vars(llm), "_template", raising=False)
    with pytest.raises(ValueError, match="the model has no chat template"):
        llm.chat(CHAT, GREEDY)
    with pytest.raises(ValueError, match="a chat is a list of messages"):
        llm.chat("The quick brown fox")  # type: ignore[arg-type]

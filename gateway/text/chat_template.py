"""The model's chat template: messages to one prompt string, as transformers' `apply_chat_template` renders them.

A template is a program that comes with a model. It runs in Jinja's immutable sandbox, with few functions, and with
bounded products, powers, ranges and output. The sandbox cannot bound time, or the memory of built-up strings: the
process in which `gateway.text.template_renderer` runs it does, so that a template may even come from a request.

As in transformers, text of a message that spells a control token becomes that token when the prompt is encoded, so the
ids equal the reference's. Deployments that put untrusted text into a trusted prompt must filter it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jinja2

from gateway.text.content import Content, has_images, image_part, in_parts, joined, text_part
from gateway.text.template_sandbox import Sandbox, to_json
from gateway.text.tools_in_text import calls_as_text, changed_calls, results_as_text, with_instruction, with_text

PROBE = "text of a message"
PROBE_NAME = "name_of_a_tool"
PROBE_ARGUMENTS = {"of": "an argument"}
PROBE_FUNCTION = {"name": PROBE_NAME, "description": "of a tool", "parameters": {"type": "object", "properties": {}}}
PROBE_TOOLS = [{"type": "function", "function": PROBE_FUNCTION}]
PROBE_ID = "idofacall"  # of nine letters, as Mistral's templates want
CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "  # its trailing space tells whether the template trims messages
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})


class TemplateError(Exception):
    """The template refuses these messages, or fails on them. The text is the template's own, or one line of ours."""


class TooLongError(TemplateError):
    """The rendered text cannot fit the context."""


@dataclass(frozen=True)
class CallStyle:
    """How a template wants the calls of an earlier answer."""

    content: str | None  # of a message that has calls and no text
    as_json: bool  # arguments as JSON text, not as an object


class ChatTemplate:
    """A compiled template and the special tokens that it may use.

    Raises:
        TemplateError: the source is not valid Jinja.
    """

    def __init__(self, source: str, special_tokens: dict[str, str], max_characters: int) -> None:
        self._values: dict[str, Any] = {"tools": None, "documents": None, **special_tokens}
        self._names_tools = "tools" in source
        self._marks_calls = "<tool_call>" in source
        self._max_characters = max_characters
        try:
            self._template = Sandbox().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the chat template is not valid: {error.message} (line {error.lineno})") from error
        except Exception as error:  # nested too deeply for Jinja or for Python
            raise TemplateError("the chat template is not valid") from error

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        tool_prompt: str | None = None,
        variables: dict[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages`; with `continue_final_message` it ends inside the last, for the model to continue.

        `tools`, and the calls and results in `messages`, are put into words where the template has no place for them.
        A `tool_prompt` is said in any case.

        Raises:
            TemplateError: the template refuses these messages, or fails on them.
        """
        messages = self._with_readable_calls(messages)
        if tools and not self._shows_tools:
            messages = with_instruction(messages, tool_prompt, tools)
        elif tools and tool_prompt:
            messages = with_text(messages, tool_prompt)
        if continue_final_message:
            messages = [*messages[:-1], _to_continue(messages[-1])]
        if any(has_images(message.get("content")) for message in messages) and not self._shows_images:
            raise TemplateError("the chat template has no place for images")
        values = {
            **self._values,
            **(variables or {}),
            "messages": [_in_parts(each) for each in messages] if self._wants_parts else messages,
            "tools": tools or None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(values)
        return _cut_at_mark(text) if continue_final_message else text

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether the template reads text in lists of parts and drops plain strings, as those of vision models do."""
        return not self._shows(PROBE) and self._shows([text_part(PROBE)])

    @cached_property
    def _shows_images(self) -> bool:
        """Whether the template writes something where a message has an image."""
        seen, unseen = self._shown([image_part(), text_part(PROBE)]), self._shown([text_part(PROBE)])
        return PROBE in seen and seen != unseen

    def _shows(self, content: Content) -> bool:
        return PROBE in self._shown(content)

    def _shown(self, content: Content) -> str:
        """What the template makes of a user's `content`; nothing if it fails, or shows Python's notation of a part."""
        messages = [{"role": "user", "content": content}]
        try:
            text = self._run({**self._values, "messages": messages, "add_generation_prompt": True})
        except TemplateError:
            return ""
        return "" if any(str(part) in text for part in in_parts(content)) else text

    def _with_readable_calls(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """`messages` with the calls of tools and their results as the template shows them."""
        if any(message.get("tool_calls") for message in messages):
            style = self._call_style
            if style is None:
                messages = [calls_as_text(message, marked=self._marks_calls) for message in messages]
            else:
                change = _as_json if style.as_json else _as_given
                messages = [changed_calls(each, change, style.content) for each in messages]
        told = any(message["role"] == "tool" for message in messages) and not self._shows_results
        return results_as_text(messages) if told else messages

    @cached_property
    def _shows_tools(self) -> bool:
        """Whether tools that are given to the template come to the model's notice."""
        if not self._names_tools:
            return False
        text = self._probe([_user()], tools=PROBE_TOOLS)
        return text is None or PROBE_NAME in text  # one that fails says in a real chat what it misses

    @cached_property
    def _call_style(self) -> CallStyle | None:
        """The first of these styles in which the template shows a call; None if it shows none."""
        for style in (CallStyle(content, as_json) for as_json in (False, True) for content in ("", None)):
            chat = [_user(), _call(style), _result("a result")]
            text = self._probe(chat, tools=PROBE_TOOLS) or self._probe(chat[:2], tools=PROBE_TOOLS) or ""
            if PROBE_ARGUMENTS["of"] in text and str(PROBE_ARGUMENTS) not in text:
                return style
        return None

    @cached_property
    def _shows_results(self) -> bool:
        answer = {"role": "assistant", "content": "an answer"}
        call = answer if self._call_style is None else _call(self._call_style)
        return PROBE in (self._probe([_user("a question"), call, _result(PROBE)], tools=PROBE_TOOLS) or "")

    def _probe(self, messages: list[dict[str, Any]], **values: Any) -> str | None:
        """What the template makes of `messages`; None if it fails on them."""
        readable = [_in_parts(each) for each in messages] if self._wants_parts else messages
        try:
            return self._run({**self._values, "messages": readable, "add_generation_prompt": True, **values})
        except TemplateError:
            return None

    def _run(self, values: dict[str, Any]) -> str:
        parts: list[str] = []
        room = self._max_characters
        try:
            for part in self._template.generate(values):
                room -= len(part)
                if room < 0:
                    raise TooLongError(f"the chat template wrote more than {self._max_characters} characters")
                parts.append(part)
        except jinja2.TemplateError as error:
            raise TemplateError(str(error.message or "the chat template failed")[:500]) from error
        except TemplateError:
            raise
        except Exception as error:  # a template can fail in any way, and a traceback would show a client's text
            raise TemplateError("the chat template does not support these messages") from error
        return "".join(parts)


def _to_continue(message: dict[str, Any]) -> dict[str, Any]:
    """The final message with a mark where the model goes on."""
    return {**message, "content": joined("", [message["content"], CONTINUE_MARK])}


def _user(text: str = PROBE) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": PROBE_ID, "name": PROBE_NAME}


def _call(style: CallStyle) -> dict[str, Any]:
    arguments = to_json(PROBE_ARGUMENTS) if style.as_json else PROBE_ARGUMENTS
    call = {"id": PROBE_ID, "type": "function", "function": {"name": PROBE_NAME, "arguments": arguments}}
    return {"role": "assistant", "content": style.content, "tool_calls": [call]}


def _as_given(arguments: Any) -> Any:
    return arguments


def _as_json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else to_json(arguments)


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": in_parts(content) if isinstance(content, str) else content}


def _cut_at_mark(text: str) -> str:
    at = text.rfind(CONTINUE_MARK.strip())
    if at < 0:
        raise TemplateError("the chat template drops the final message, so it can't be continued")
    trimmed = not text.startswith(CONTINUE_MARK, at)
    return text[:at].rstrip() if trimmed else text[:at]

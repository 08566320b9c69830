"""The model's chat template: messages to one prompt string, as transformers' `apply_chat_template` renders them.

A template is a program that comes with a model. It runs in Jinja's immutable sandbox, with few functions, and with
bounded products, powers, ranges and output. The sandbox cannot bound time, or the memory of built-up strings: the
process in which `gateway.text.template_renderer` runs it does, so that a template may even come from a request.

As in transformers, text of a message that spells a control token becomes that token when the prompt is encoded, so the
ids equal the reference's. Deployments that put untrusted text into a trusted prompt must filter it.
"""

import json
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_PRODUCT = 1_000_000  # length of a repeated sequence, or bits of a number
MAX_RANGE = 10_000
PROBE = "text of a message"
CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "  # its trailing space tells whether the template trims messages
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})


class TemplateError(Exception):
    """The template refuses these messages, or fails on them. The text is the template's own, or one line of ours."""


class TooLongError(TemplateError):
    """The rendered text cannot fit the context."""


class ChatTemplate:
    """A compiled template and the special tokens that it may use.

    Raises:
        TemplateError: the source is not valid Jinja.
    """

    def __init__(self, source: str, special_tokens: dict[str, str], max_characters: int) -> None:
        self._values: dict[str, Any] = {"tools": None, "documents": None, **special_tokens}
        self._max_characters = max_characters
        try:
            self._template = _Sandbox().from_string(source)
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
        variables: dict[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages`; with `continue_final_message` it ends inside the last, for the model to continue.

        Raises:
            TemplateError: the template refuses these messages, or fails on them.
        """
        if continue_final_message:
            messages = [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + CONTINUE_MARK}]
        values = {
            **self._values,
            **(variables or {}),
            "messages": [_in_parts(each) for each in messages] if self._wants_parts else messages,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(values)
        return _cut_at_mark(text) if continue_final_message else text

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether the template reads text in lists of parts and drops plain strings, as those of vision models do."""
        return not self._shows(PROBE) and self._shows(_parts(PROBE))

    def _shows(self, content: str | list[dict[str, str]]) -> bool:
        messages = [{"role": "user", "content": content}]
        try:
            text = self._run({**self._values, "messages": messages, "add_generation_prompt": True})
        except TemplateError:
            return False
        return PROBE in text and str(_parts(PROBE)[0]) not in text  # not if it shows Python's notation of a part

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


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": _parts(content) if isinstance(content, str) else content}


def _cut_at_mark(text: str) -> str:
    at = text.rfind(CONTINUE_MARK.strip())
    if at < 0:
        raise TemplateError("the chat template drops the final message, so it can't be continued")
    trimmed = not text.startswith(CONTINUE_MARK, at)
    return text[:at].rstrip() if trimmed else text[:at]


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; serving renders its body as it is."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own protocol)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Any) -> str:
        return str(caller())


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControls])
        self.filters["tojson"] = _to_json
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, range=_bounded_range)
        for name in ("lipsum", "cycler", "joiner"):
            self.globals.pop(name)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            _check_power(left, right)
        else:
            _check_product(left, right)
        return super().call_binop(context, operator, left, right)


def _check_product(left: Any, right: Any) -> None:
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple) and isinstance(count, int) and len(sequence) * count > MAX_PRODUCT:
            raise SecurityError(f"the chat template repeats a sequence to more than {MAX_PRODUCT} elements")
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_PRODUCT:
        raise SecurityError(f"the chat template computes a number of more than {MAX_PRODUCT} bits")


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_PRODUCT:
        raise SecurityError(f"the chat template computes a number of more than {MAX_PRODUCT} bits")


def _bounded_range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise SecurityError(f"the chat template loops over a range of more than {MAX_RANGE}")
    return numbers


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes HTML, which templates were not written for."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

"""Jinja's immutable sandbox with what transformers gives templates, and with bounded products, powers and ranges."""

import json
from datetime import datetime
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


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; serving renders its body as it is."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own protocol)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Any) -> str:
        return str(caller())


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControls])
        self.filters["tojson"] = to_json
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


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes HTML, which templates were not written for."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

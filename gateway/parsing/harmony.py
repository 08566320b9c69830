"""gpt-oss's harmony format: messages with a header, which names a channel and, for calls, a recipient.

The text continues the header `<|start|>assistant`. The channel `analysis` is reasoning, `commentary` and `final` are
content, and a message to a function is a call.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gateway.parsing import json_text
from gateway.parsing.calls import Arguments, Call, Head, TextUntil
from gateway.parsing.lark import HEADER, Lark, TokenId
from gateway.parsing.pieces import Tool
from gateway.parsing.reader import EndOfText, Malformed, Reading, marks
from gateway.parsing.text_parser import TextParser

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
MARKS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL)

_HEADER_BEGINS = marks(*MARKS, "to=")
_HEADER_ENDS = marks(MESSAGE, END)
_TEXT_ENDS = marks(END, RETURN, START + "assistant")
_CALL_ENDS = marks(END, RETURN, CALL, START)
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_CALLS = "start: reasoning* call"
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


@dataclass(frozen=True, slots=True)
class HarmonyFormat:
    """One call ends a turn, so `parallel` makes no difference."""

    name: str = "openai"
    marks: tuple[str, ...] = MARKS

    def grammar(self, tools: Mapping[str, Arguments], *, parallel: bool, token_id: TokenId) -> str:
        lark = Lark(MARKS, token_id)
        return "\n".join([HEADER, _CALLS, *_rules(lark, tools)])

    def auto_grammar(self, tools: Mapping[str, Arguments], *, parallel: bool, token_id: TokenId) -> str:
        lark = Lark(MARKS, token_id)
        final = f"final: {lark.text(f'{CHANNEL}final{MESSAGE}')} TEXT"
        return "\n".join([HEADER, "start: (reasoning | preamble)* (call | final)", final, *_rules(lark, tools)])


def answer_grammar(schema: str, token_id: TokenId) -> str:
    """Lark of an answer whose content is JSON: reasoning as the model likes, then the channel `final`."""
    lark = Lark(MARKS, token_id)
    return "\n".join([HEADER, "start: reasoning* final", _final(lark, schema), *_rules(lark, {})])


def or_answer(calls: str, schema: str, token_id: TokenId) -> str:
    """Lark of the grammar of `calls`, or of an answer whose content is JSON."""
    start, *rules = calls.removeprefix(f"{HEADER}\n").splitlines()
    assert start == _CALLS
    return "\n".join([HEADER, "start: reasoning* (call | final)", _final(Lark(MARKS, token_id), schema), *rules])


def _final(lark: Lark, schema: str) -> str:
    return f"final: {lark.text(f'{CHANNEL}final{MESSAGE}')} %json {schema}"


def _rules(lark: Lark, tools: Mapping[str, Arguments]) -> list[str]:
    end = lark.until(TextUntil(f"{END}{START}assistant"))
    messages = [
        f"{name}: {lark.text(f'{CHANNEL}{channel}{MESSAGE}')} {end}"
        for name, channel in (("reasoning", "analysis"), ("preamble", "commentary"))
    ]
    names = [f"call_{number}" for number in range(len(tools))]
    calls = [
        f"{rule}: ({_recipients(lark, name)}) {lark.text(f'{CONSTRAIN}json{MESSAGE}')} %json {arguments.schema}"
        for rule, (name, arguments) in zip(names, tools.items(), strict=True)
    ]
    either = [f"call: {' | '.join(names)}"] if names else []
    return [*messages, *either, *calls, *lark.rules()]


def _recipients(lark: Lark, name: str) -> str:
    """The recipient stands behind the channel, or before it."""
    behind = lark.text(f"{CHANNEL}commentary to=functions.{name} ")
    before = lark.text(f" to=functions.{name}{CHANNEL}commentary ")
    return f"{behind} | {before}"


class HarmonyParser(TextParser):
    """Reads harmony's messages, whether or not tools are known."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(None, None, tools, "")

    def _read(self) -> Reading[None]:
        reader = self._reader
        if not (yield from reader.follows(_HEADER_BEGINS)):
            yield from reader.until(marks(START, CHANNEL), self._message.content)
        while True:
            head = Head()
            reader.record()
            try:
                mark = yield from reader.until(_HEADER_ENDS, head.add)
            except Malformed:
                self._read_as_text(self._message.content)
                mark = yield from reader.until(marks(START, CHANNEL), self._message.content)
            except EndOfText:
                if not self._cut and _RECIPIENT.search(head.text):
                    self._message.content(head.text)
                raise
            reader.forget()
            if mark == MESSAGE:
                yield from self._read_message(head.text)

    def _read_message(self, header: str) -> Reading[None]:
        channel = (_CHANNEL.findall(header) or ["final"])[-1]
        recipient = (_RECIPIENT.findall(header) or [""])[-1]
        name = recipient.removeprefix("functions.")
        if name and (name != recipient or name in self._tools):
            yield from self._read_call_to(name)
        elif channel == "analysis" and recipient in ("", "assistant"):
            yield from self._reader.until(_TEXT_ENDS, self._message.reasoning)
            self._message.end_reasoning()
        elif recipient in ("", "assistant"):
            yield from self._reader.until(_TEXT_ENDS, self._message.content)
        else:  # a tool of the model's own, which nobody runs
            yield from self._reader.until(_CALL_ENDS, _drop)

    def _read_call_to(self, name: str) -> Reading[None]:
        call = Call(self._reader, self._message, self._tools, known_only=False)
        call.begin(name)
        with suppress(Malformed):
            yield from json_text.value(self._reader, call.arguments)
            call.end()
        yield from self._reader.until(_CALL_ENDS, _drop)


def _drop(text: str) -> None:
    """Nobody is told."""

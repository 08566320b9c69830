"""How the answer to one chat is read, and what it is held to: which formats of calls and reasoning are in play."""

from dataclasses import dataclass
from typing import Any

from gateway.config.options import Options
from gateway.errors import RequestError
from gateway.grammar import json_schema
from gateway.parsing.formats import Formats
from gateway.parsing.parser import parser
from gateway.parsing.pieces import MessageParser, Tool
from gateway.parsing.reasoning_format import ReasoningFormat
from gateway.parsing.tool_format import ToolFormat
from gateway.routes.openai.schemas import ChatRequest
from gateway.routes.openai.tool_choice import ToolUse
from gateway.routes.openai.tools import Function
from gateway.text.model_text import ModelText
from gateway.text.tokenizer import Tokenizer
from jaxengine.rpc import engine_pb2 as pb

ANY_OBJECT: dict[str, Any] = {"type": "object"}
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class AnswerFormat:
    """Of one chat.

    prompt: its text, which tells whether the model is already reasoning.
    tools: the format of calls; None if the answer holds none.
    reasoning: the model's format of reasoning.
    separate: reasoning is told apart from the content.
    shown: and it is answered, `streamed` as it comes.
    """

    prompt: str
    tool_use: ToolUse
    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    separate: bool
    shown: bool
    streamed: bool

    @classmethod
    def of(cls, body: ChatRequest, prompt: str, formats: Formats) -> "AnswerFormat":
        use = body.tool_use
        tools = None if not use.on else formats.forced if use.mode == "required" else formats.tools
        return cls(
            prompt,
            use,
            tools,
            formats.reasoning,
            separate=body.separate_reasoning is not False,
            shown=body.include_reasoning is not False,
            streamed=body.stream_reasoning is not False,
        )

    @property
    def reads_reasoning(self) -> bool:
        return self.reasoning is not None and self.separate

    @property
    def reads_calls(self) -> bool:
        return self.tools is not None

    @property
    def plain(self) -> bool:
        """Whether the answer is its text."""
        return not self.reads_calls and not self.reads_reasoning

    def parser(self) -> MessageParser:
        """A parser of one choice."""
        tools = [Tool(each.name, each.parameters or {}) for each in self.tool_use.callable]
        return parser(self.tools, self.reasoning if self.separate else None, tools, prompt=self.prompt)

    def visible(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The ids of the special tokens that the parser has to see."""
        marks = self.tools.marks if self.tools else ()
        marks += self.reasoning.marks if self.reasoning and self.separate else ()
        return frozenset(id for mark in marks if (id := tokenizer.special_id(mark)) is not None)

    def constrain(self, request: pb.Generate, body: ChatRequest, model: ModelText, options: Options) -> None:
        """Add to `request` what its text is held to. Raises RequestError."""
        if self.tools is not None and (lark := self._lark(self.tools, model.tokenizer, options)) is not None:
            if body.ignore_eos:
                raise RequestError.invalid("ignore_eos is not supported where calls are constrained", "ignore_eos")
            request.grammar.lark = lark
        budget = _budget(body)
        if budget is not None and self.reasoning is None:
            message = "thinking_token_budget needs a model whose reasoning can be told from its answer"
            raise RequestError.invalid(message, "thinking_token_budget")
        if request.HasField("grammar") or budget is not None:
            self._exempt_reasoning(request, model.tokenizer, budget)

    def _lark(self, tools: ToolFormat, tokenizer: Tokenizer, options: Options) -> str | None:
        """The grammar of the calls; None if they are not constrained."""
        use = self.tool_use
        if use.mode == "required":
            schemas = {each.name: _schema(each, use) for each in use.callable}
            return tools.grammar(schemas, parallel=use.parallel, token_id=tokenizer.special_id)
        level = options.tool_strict_level
        strict = [each for each in use.callable if each.strict or level == "parameter"]
        if not strict and not use.restricted and use.parallel and level == "none":
            return None
        schemas = {each.name: _schema(each, use, free=each not in strict) for each in use.callable}
        return tools.auto_grammar(schemas, parallel=use.parallel, token_id=tokenizer.special_id)

    def _exempt_reasoning(self, request: pb.Generate, tokenizer: Tokenizer, budget: int | None) -> None:
        """Tell the engine where reasoning ends, to which no grammar applies and which a budget bounds."""
        reasoning = self.reasoning
        if reasoning is None or reasoning.closed_after(self.prompt):
            return
        if not reasoning.open_after(self.prompt):
            request.reasoning.begin.extend(tokenizer.encode(reasoning.begin, add_special_tokens=False))
        request.reasoning.end.extend(tokenizer.encode(reasoning.end, add_special_tokens=False))
        if budget is not None:
            request.reasoning.budget = budget


def _schema(function: Function, use: ToolUse, *, free: bool = False) -> str:
    """The schema of a function's arguments; of any arguments if they are `free`. Raises RequestError."""
    at = use.functions.index(function)
    param = f"functions[{at}].parameters" if use.legacy else f"tools[{at}].function.parameters"
    return json_schema.guided(ANY_OBJECT if free else _of_arguments(function.parameters), param=param)


def _of_arguments(parameters: dict[str, Any] | None) -> dict[str, Any]:
    """`parameters` as the schema of an object, which clients do not always say."""
    if parameters is None:
        return NO_ARGUMENTS
    return ANY_OBJECT | parameters if not parameters or "properties" in parameters else parameters


def _budget(body: ChatRequest) -> int | None:
    given = body.thinking_token_budget
    return None if given is None or given < 0 else given

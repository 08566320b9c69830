"""What the text of a chat's answer is held to by a grammar: calls that must come, or must fit, and documents.

A tool that must be called wins over a `response_format`, as in vLLM; where the model may choose, the answer is calls or
the document. Reasoning comes before either, and no grammar applies to it.
"""

from typing import Any

from gateway.config.options import Options
from gateway.errors import RequestError
from gateway.grammar import json_schema
from gateway.grammar.constraint import Constraint
from gateway.parsing.calls import Arguments
from gateway.parsing.harmony import HarmonyFormat, answer_grammar, or_answer
from gateway.parsing.lark import GAP
from gateway.parsing.reasoning_format import ReasoningFormat
from gateway.parsing.tool_format import ToolFormat
from gateway.routes.openai.answer_format import AnswerFormat
from gateway.routes.openai.beam_search import not_with_beams
from gateway.routes.openai.grammar_fields import GrammarFields
from gateway.routes.openai.schemas import ChatRequest
from gateway.routes.openai.tool_choice import ToolUse
from gateway.routes.openai.tools import Function
from gateway.text.tokenizer import Tokenizer
from jaxengine.rpc import engine_pb2 as pb

ANY_OBJECT: dict[str, Any] = {"type": "object"}
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def constrain(
    requests: list[pb.Generate], body: ChatRequest, answer: AnswerFormat, tokenizer: Tokenizer, options: Options
) -> GrammarFields:
    """Add to `requests`, the choices of a chat, what their text is held to besides what `body` itself says.

    Returns:
        which fields of the chat the grammar comes from.

    Raises:
        RequestError: a schema of a tool cannot be enforced, or a constraint is not supported in such a request.
    """
    bounded = body.reasoning_budget is not None or body.reasons is False
    if answer.tools is None and body.constraint is None and not bounded:
        return GrammarFields()
    reasoning = _reasoning(body, answer, tokenizer)
    lark, fields = _lark(body, answer, tokenizer, options)
    for request in requests:
        if lark is not None:
            request.grammar.lark = lark
        if reasoning is not None and (request.HasField("grammar") or reasoning.HasField("budget")):
            request.reasoning.CopyFrom(reasoning)
    return fields


def _reasoning(body: ChatRequest, answer: AnswerFormat, tokenizer: Tokenizer) -> pb.Reasoning | None:
    """Where reasoning ends, and what bounds it; None if the answer has none, or none that the engine can tell."""
    reasoning = None if answer.reasoning is None else _marks(answer.reasoning, answer.prompt, tokenizer)
    if body.reasons is False:
        return _none(reasoning, body, answer)
    if body.reasoning_budget is None:
        return reasoning
    field, budget = body.reasoning_budget
    if reasoning is not None:
        reasoning.budget = budget
    elif answer.reasoning is None or not answer.reasoning.closed_after(answer.prompt):
        message = f"{field} needs a model whose reasoning begins and ends with marks that are tokens"
        raise RequestError.invalid(message, field)
    return reasoning


def _none(reasoning: pb.Reasoning | None, body: ChatRequest, answer: AnswerFormat) -> pb.Reasoning | None:
    """Reasoning that ends where it begins, of a model whose template has no switch. Raises RequestError."""
    if reasoning is not None:
        if body.use_beam_search:
            field = "reasoning_effort" if body.reasoning_effort == "none" else "chat_template_kwargs"
            raise not_with_beams(f"{field} that ends reasoning at once, as this model's template cannot,", field)
        reasoning.budget = 0
    elif body.reasoning_effort == "none" and answer.reasoning is not None and answer.reasoning.harmony:
        raise RequestError.invalid(
            "reasoning_effort none is not supported: this model always reasons", "reasoning_effort"
        )
    return reasoning


def _marks(written: ReasoningFormat, prompt: str, tokenizer: Tokenizer) -> pb.Reasoning | None:
    """Marks that the engine can tell: an answer may begin with a mark of one id, or inside reasoning."""
    if written.harmony or written.closed_after(prompt):
        return None
    begun = written.open_after(prompt)
    begin, end = tokenizer.encode_each(["" if begun else written.begin, written.end], add_special_tokens=False)
    return pb.Reasoning(begin=begin, end=end) if begun or len(begin) == 1 else None


def _lark(
    body: ChatRequest, answer: AnswerFormat, tokenizer: Tokenizer, options: Options
) -> tuple[str | None, GrammarFields]:
    """The grammar of calls, of a document or of both, None if that of the body holds as it is; and its fields."""
    use, document = body.tool_use, body.constraint if body.tool_use.mode != "required" else None
    calls = None if answer.tools is None else _calls(answer.tools, use, document, tokenizer, options)
    if calls is not None:
        _check_support(use, body, options)
        lark = calls if document is None else _either(calls, document, answer.tools, tokenizer)
        return lark, GrammarFields.of_calls(use, _held(use, options), document, lark)
    if document is None or document.kind != "json_schema" or not (answer.reasoning and answer.reasoning.harmony):
        return None, GrammarFields.of(document)
    lark = answer_grammar(document.text, tokenizer.special_id)
    return lark, GrammarFields.of(document, lark)


def _held(use: ToolUse, options: Options) -> list[Function]:
    """The functions whose calls are held to their schemas."""
    every = use.mode == "required" or options.tool_strict_level == "parameter"
    return [each for each in use.callable if every or each.strict]


def _calls(
    tools: ToolFormat, use: ToolUse, document: Constraint | None, tokenizer: Tokenizer, options: Options
) -> str | None:
    """The grammar of calls: alone where the answer is nothing else or a `document`, else among free text; None if they
    are not constrained.
    """
    held = _held(use, options)
    if use.mode != "required" and not _restrains(use, held, document, options):
        return None
    arguments = {each.name: Arguments(_schema(each, use)) if each in held else _any(each) for each in use.callable}
    alone = use.mode == "required" or document is not None
    write = tools.grammar if alone else tools.auto_grammar
    return write(arguments, parallel=use.parallel, token_id=tokenizer.special_id)


def _restrains(use: ToolUse, held: list[Function], document: Constraint | None, options: Options) -> bool:
    """Whether calls that the model may make have to be constrained."""
    several = use.parallel or options.disable_grammar_support  # if there may not be several, the first is answered
    free = not held and not use.restricted and several and options.tool_strict_level == "none"
    return not free if document is None else document.kind == "json_schema"


def _either(calls: str, document: Constraint, tools: ToolFormat | None, tokenizer: Tokenizer) -> str:
    """Lark of the grammar `calls`, or of a JSON document."""
    if isinstance(tools, HarmonyFormat):
        return or_answer(calls, document.text, tokenizer.special_id)
    renamed = calls.replace("\nstart: ", "\ncalls: ", 1)
    return f"{renamed}\nstart: calls | {GAP} document\n{_rule(document)}"


def _rule(document: Constraint) -> str:
    return f"document: %json {document.text}"


def _any(function: Function) -> Arguments:
    """Any arguments, of which those that a function declares are known by name."""
    declared = (function.parameters or {}).get("properties")
    return Arguments(json_schema.ANY_OBJECT, tuple(declared) if isinstance(declared, dict) else ())


def _schema(function: Function, use: ToolUse) -> str:
    """The schema of a function's arguments. Raises RequestError."""
    return json_schema.guided(_of_arguments(function.parameters), param=use.schema_field(function))


def _of_arguments(parameters: dict[str, Any] | None) -> dict[str, Any]:
    """`parameters` as the schema of an object, which clients do not always say."""
    if parameters is None:
        return NO_ARGUMENTS
    return ANY_OBJECT | parameters if not parameters or "properties" in parameters else parameters


def _check_support(use: ToolUse, body: ChatRequest, options: Options) -> None:
    """Raise RequestError if calls cannot be constrained here, or not in such a request."""
    field = use.tools_field
    if options.disable_grammar_support:
        message = f"{field} are to be called as a grammar says, which --disable-grammar-support switches off"
        raise RequestError.invalid(message, field)
    if body.ignore_eos:
        message = f"ignore_eos is not supported with {field} whose calls are constrained: they end the text"
        raise RequestError.invalid(message, "ignore_eos")
    if body.use_beam_search:
        raise not_with_beams(f"a grammar of calls, which {field} ask for,", field)

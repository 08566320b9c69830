"""Where the engine refuses a grammar, the error names the field whose schema is at fault, not just one that has any.

The refusals are llguidance's own, as the engine words them.
"""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from jaxengine.grammar.grammar import Grammar
from jaxengine.grammar.trial import trial
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import ServedApp, serve
from tests.gateway.grammar.llguidance_bytes import TOKENIZER
from tests.gateway.routes.openai.test_chat import USER
from tests.gateway.routes.openai.tool_chats import HERMES, PATH, serving

BAD: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string", "pattern": "[z-a]"}}}
GOOD: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
QWEN3_CODER = "<tool_call>\n<function={{ tools }}>\n<parameter={{ messages[0].content }}"


def tools(*schemas: Any, strict: bool = True, field: str = "parameters") -> list[dict[str, Any]]:
    named = [{"name": f"f{number}", field: each, "strict": strict} for number, each in enumerate(schemas)]
    return [{"type": "function", "function": each} for each in named]


def document(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "d", "schema": schema}}}


def vetting(app: ServedApp, reason: str | None = None) -> None:
    """An engine that tries grammars, or finds `reason` to refuse any."""

    async def generate(request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
        kind = request.grammar.WhichOneof("kind")
        assert kind is not None
        found = reason or trial(TOKENIZER, [TOKENIZER.eos_token], Grammar(kind, getattr(request.grammar, kind)))
        yield pb.RequestEvent(finish=pb.INVALID, error=f"grammar: {found}")

    app.engine.generate = generate  # type: ignore[method-assign]


async def refusal(fields: dict[str, Any], template: str = HERMES, reason: str | None = None) -> dict[str, Any]:
    """The error, which is the same for a stream."""
    async with serving(template=template) as app:
        vetting(app, reason)
        errors = []
        for stream in (False, True):
            response = await app.post(PATH, {"messages": USER, **fields, "stream": stream})
            assert response.status_code == 400, response.text
            errors.append(response.json()["error"])
        assert errors[0] == errors[1]
        found: dict[str, Any] = errors[0]
        return found


@pytest.mark.parametrize("template", [HERMES, QWEN3_CODER], ids=["hermes", "qwen3_coder"])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": tools(GOOD, None, BAD), **document(GOOD)}, "tools[2].function.parameters"),
        ({"tools": tools(GOOD, GOOD), **document(BAD)}, "response_format"),
        ({"tools": tools(GOOD, GOOD, BAD), "tool_choice": "required"}, "tools[2].function.parameters"),
        ({"tools": tools(GOOD, BAD), "tool_choice": "f1"}, "tools[1].function.parameters"),
        ({"tools": tools(GOOD, BAD, field="arguments")}, "tools[1].function.arguments"),
        ({"functions": [{"name": "a"}, {"name": "b", "parameters": BAD}], "function_call": {"name": "b"}},
         "functions[1].parameters"),
        ({"response_format": document(BAD)["response_format"], "tools": tools(BAD, strict=False)}, "response_format"),
    ],
)  # fmt: skip
async def test_the_schema_at_fault_is_named(template: str, fields: dict[str, Any], param: str) -> None:
    error = await refusal(fields, template)
    assert error["param"] == param
    assert (
        error["message"].startswith(f"{param} is not valid: ") and "invalid character class range" in error["message"]
    )
    assert "line" not in error["message"]  # of a grammar that the client did not write


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"tools": tools(GOOD, GOOD), "tool_choice": "required"}, "tools"),
        ({"tools": tools(GOOD, None), "tool_choice": "required"}, "tools[0].function.parameters"),
        ({"tools": tools(GOOD, GOOD), **document(GOOD)}, "tools or response_format"),
        ({"tools": tools(GOOD), **document(GOOD)}, "tools[0].function.parameters or response_format"),
        ({"tools": tools(GOOD, strict=False), **document(GOOD)}, "response_format"),
        (document(GOOD), "response_format"),
    ],
)
async def test_a_fault_of_the_whole_names_all_that_it_may_be_in(fields: dict[str, Any], asked: str) -> None:
    error = await refusal(fields, reason="it is too complex")
    assert error["message"] == f"{asked} is not valid: it is too complex"
    assert error["param"] == asked.split(" or ")[0]


async def test_lines_are_told_of_a_grammar_that_the_client_wrote() -> None:
    error = await refusal({"grammar": "start: a\na: /[z-a]/"})
    assert error["message"].startswith("grammar is not valid: line 2, column ")
    tag = {"structures": [{"begin": "<a>", "schema": BAD, "end": "</a>"}], "triggers": ["<a"]}
    error = await refusal({"response_format": {"type": "structural_tag", **tag}})
    assert error["param"] == "response_format" and "line" not in error["message"]


async def test_vertex_names_the_field_too() -> None:
    async with serve() as app:
        vetting(app)
        instance = {"messages": USER, **document(BAD)}
        response = await app.post("/vertex", instances=[instance])
        assert response.status_code == 422
        assert response.json()["error"].startswith("Input validation error: response_format is not valid: ")

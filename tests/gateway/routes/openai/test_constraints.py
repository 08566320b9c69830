"""Each server's way to constrain an answer reaches the engine as one grammar, or is refused naming its field."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.grammar import json_schema, structural_tag, whitespace
from gateway.grammar.json_style import OF_TGI, JsonStyle
from gateway.http.body import MANY
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import Callers, ServedApp, serve

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "lo"}]}
TEXT: dict[str, Any] = {"prompt": "lo"}
PATHS: list[tuple[str, dict[str, Any]]] = [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GUIDED = json_schema.guided(SCHEMA, param="")
TGI_GUIDED = json_schema.guided(SCHEMA, param="", style=OF_TGI)
ANY_OBJECT = json_schema.ANY_OBJECT
YES_OR_NO = 'start: CHOICE\nCHOICE: "yes" | "no"\n'
LARK, GBNF = 'start: "a"', 'root ::= "a"'
NAMED = {"name": "it", "schema": SCHEMA, "strict": True, "description": "d"}
NO_REASONING = {"reasoning_parser": "none"}  # before the document, which is another grammar
TAGGED = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a"]}
TAGGED_LARK = structural_tag.lark(TAGGED, {}, "")
SPACED_TAGGED_LARK = structural_tag.lark(TAGGED, {}, "", OF_TGI)
COMPACT = json_schema.guided(SCHEMA, param="", style=JsonStyle(whitespace.NONE))
MAP = {"type": "object", "patternProperties": {"^a": {"type": "integer"}}}
CLOSED_MAP = json_schema.guided({**MAP, "additionalProperties": False}, param="")
MERGED = {"allOf": [SCHEMA, MAP]}
LARK_OF_JSON = f"start: %json {json.dumps(SCHEMA)}"

SERVED: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"response_format": {"type": "json_object"}}, {"json_schema": ANY_OBJECT}),
    ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, {"json_schema": GUIDED}),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "it"}}}, {"json_schema": ANY_OBJECT}),
    ({"response_format": {"type": "grammar", "grammar": LARK}}, {"lark": LARK}),
    # llama.cpp
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"json_schema": GUIDED}),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, {"json_schema": GUIDED}),
    ({"json_schema": SCHEMA}, {"json_schema": GUIDED}),
    ({"grammar": GBNF}, {"gbnf": GBNF}),
    # TGI
    ({"response_format": {"type": "json", "value": SCHEMA}}, {"json_schema": TGI_GUIDED}),
    ({"response_format": {"type": "json_object", "value": json.dumps(SCHEMA)}}, {"json_schema": TGI_GUIDED}),
    ({"response_format": {"type": "json_schema", "value": {"schema": SCHEMA}}}, {"json_schema": TGI_GUIDED}),
    ({"response_format": {"type": "regex", "value": "a+"}}, {"regex": "a+"}),
    # vLLM
    ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": GUIDED}),
    (
        {"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None, "json_object": False}},
        {"json_schema": GUIDED},
    ),
    ({"structured_outputs": {"json_object": True}}, {"json_schema": ANY_OBJECT}),
    ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, {"lark": YES_OR_NO}),
    ({"structured_outputs": {"grammar": LARK}}, {"lark": LARK}),
    ({"structured_outputs": {"grammar": GBNF}}, {"gbnf": GBNF}),
    ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}}, {"json_schema": TGI_GUIDED}),
    (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ", "disable_any_whitespace": True}},
        {"json_schema": COMPACT},
    ),
    ({"structured_outputs": {"json": MAP, "disable_additional_properties": True}}, {"json_schema": CLOSED_MAP}),
    ({"structured_outputs": {"structural_tag": json.dumps(TAGGED)}}, {"lark": TAGGED_LARK}),
    (
        {"structured_outputs": {"structural_tag": TAGGED, "whitespace_pattern": " "}},
        {"lark": SPACED_TAGGED_LARK},
    ),
    (
        {"structured_outputs": {"grammar": LARK_OF_JSON, "disable_any_whitespace": True}},
        {"lark": f"start: %json {COMPACT}"},
    ),
    ({"response_format": {"type": "structural_tag", **TAGGED}}, {"lark": TAGGED_LARK}),
    (
        {"response_format": {"type": "structural_tag", **TAGGED}, "guided_whitespace_pattern": " "},
        {"lark": SPACED_TAGGED_LARK},
    ),
    (
        {"response_format": {"type": "json", "value": SCHEMA}, "guided_whitespace_pattern": ""},
        {"json_schema": COMPACT},
    ),
    ({"guided_json": SCHEMA}, {"json_schema": GUIDED}),
    ({"guided_json": SCHEMA, "guided_whitespace_pattern": " "}, {"json_schema": TGI_GUIDED}),
    (
        {"response_format": {"type": "json_schema", "json_schema": NAMED}, "guided_whitespace_pattern": " "},
        {"json_schema": TGI_GUIDED},
    ),
    ({"structured_outputs": {"json": SCHEMA}, "guided_whitespace_pattern": " "}, {"json_schema": TGI_GUIDED}),
    ({"guided_regex": "a+"}, {"regex": "a+"}),
    ({"guided_choice": ["yes", "no"]}, {"lark": YES_OR_NO}),
    ({"guided_grammar": LARK}, {"lark": LARK}),
    # guidance sends the constraint by its name before vLLM 0.12, and by the one since
    (
        {"structured_outputs": {"grammar": LARK}, "guided_grammar": LARK, "guided_decoding_backend": "guidance"},
        {"lark": LARK},
    ),
    ({"structured_outputs": {"json": SCHEMA}, "guided_json": SCHEMA}, {"json_schema": GUIDED}),
    # SGLang
    ({"regex": "a+"}, {"regex": "a+"}),
    ({"ebnf": GBNF}, {"gbnf": GBNF}),
    ({"json_schema": json.dumps(SCHEMA)}, {"json_schema": GUIDED}),
    # nothing is asked for
    ({"response_format": {"type": "text"}}, {}),
    ({"response_format": {"type": "text"}, "regex": "a+"}, {"regex": "a+"}),
    ({"grammar": "", "json_schema": "", "grammar_lazy": False, "grammar_triggers": []}, {}),
]


@pytest.mark.parametrize(("fields", "grammar"), SERVED, ids=lambda value: json.dumps(value)[:60])
async def test_what_is_asked_for_reaches_the_engine(fields: dict[str, Any], grammar: dict[str, str]) -> None:
    async with serve(**NO_REASONING) as app:
        for path, body in PATHS:
            for stream in (False, True):
                response = await app.post(path, {**body, **fields, "n": 2, "stream": stream})
                assert response.status_code == 200, response.text
        assert len(app.engine.requests) == 8
        assert all(request.grammar == pb.Grammar(**grammar) for request in app.engine.requests)
        assert all(request.HasField("grammar") is bool(grammar) for request in app.engine.requests)


async def test_each_chat_of_a_batch_is_constrained() -> None:
    async with serve(**NO_REASONING) as app:
        body = {"messages": [CHAT["messages"]] * 2, "structured_outputs": {"json": SCHEMA}}
        assert (await app.post("/v1/chat/completions/batch", body)).status_code == 200
        assert [request.grammar.json_schema for request in app.engine.requests] == [GUIDED] * 2


UNIQUE = {"type": "array", "uniqueItems": True}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {}}, "response_format.type", "json_object"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ({"response_format": {"type": "regex"}}, "response_format.value", "required"),
    ({"response_format": {"type": "json", "value": None}}, "response_format.value", "required"),
    ({"response_format": {"type": {"a": 1}}}, "response_format.type", "json_object"),
    ({"response_format": "json_object"}, "response_format", "object"),
    ({"response_format": {"type": "json_schema", "json_schema": 1}}, "response_format.json_schema", "object"),
    ({"response_format": {"type": "json_schema", "json_schema": {**NAMED, "name": "a b"}}},
     "response_format.json_schema.name", "64"),
    ({"response_format": {"type": "json_schema", "json_schema": {**NAMED, "strict": "yes"}}},
     "response_format.json_schema.strict", "true or false"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": UNIQUE}}}, "response_format", "uniqueItems"),
    ({"response_format": {"type": "json", "value": "{"}}, "response_format", "JSON"),
    ({"response_format": {"type": "regex", "value": {}}}, "response_format.value", "string"),
    ({"response_format": {"type": "grammar"}}, "response_format.grammar", "string"),
    ({"structured_outputs": {}}, "structured_outputs", "one of json"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs", "one of json"),
    ({"structured_outputs": {"json": UNIQUE}}, "structured_outputs.json", "uniqueItems"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "no choices"),
    ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]", "string"),
    ({"structured_outputs": {"json": {}, "whitespace_pattern": "a"}},
     "structured_outputs.whitespace_pattern", "whitespace"),
    ({"structured_outputs": {"json": {}, "whitespace_pattern": "a", "disable_any_whitespace": True}},
     "structured_outputs.whitespace_pattern", "whitespace"),
    ({"structured_outputs": {"json": MERGED, "disable_additional_properties": True}},
     "structured_outputs.json", "disable_additional_properties"),
    ({"grammar": f"start: %json {json.dumps(UNIQUE)}"}, "grammar", "%json in line 1: uniqueItems"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "structures"),
    ({"response_format": {"type": "structural_tag", "format": {"type": "xml"}}}, "response_format", "xml"),
    ({"guided_json": UNIQUE}, "guided_json", "uniqueItems"),
    ({"guided_json": {}, "guided_whitespace_pattern": "a"}, "guided_whitespace_pattern", "whitespace"),
    ({"guided_regex": "((a{100}){100}){100}"}, "guided_regex", "10000"),
    ({"guided_whitespace_pattern": "a"}, "guided_whitespace_pattern", "whitespace"),
    ({"guided_json": '{"const": "\\ud83d"}'}, "guided_json", "half a character"),
    ({"structured_outputs": {"json": '{"title": "\\ud83d"}'}}, "structured_outputs.json", "half a character"),
    ({"json_schema": {"not": {}}}, "json_schema", "not"),
    ({"regex": "a", "ebnf": GBNF}, "ebnf", "regex and ebnf exclude each other"),
    ({"response_format": {"type": "json_object"}, "guided_json": {}}, "guided_json", "response_format"),
    ({"structured_outputs": {"regex": "a"}, "guided_regex": "b"}, "guided_regex", "structured_outputs"),
    ({"structured_outputs": {"regex": "a"}, "guided_grammar": "a"}, "guided_grammar", "structured_outputs"),
    ({"structured_outputs": {"json": {"const": 1}}, "guided_json": {"const": True}}, "guided_json", "exclude"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}, "guided_regex": "a"}, "guided_regex", "exclude"),
    ({"grammar": GBNF, "grammar_lazy": True}, "grammar_lazy", "not supported"),
    ({"regex": "a", "ignore_eos": True}, "ignore_eos", "regex"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "part"), REFUSED, ids=lambda value: json.dumps(value)[:60])
async def test_what_cannot_be_held_to_is_a_400_naming_the_field(fields: dict[str, Any], param: str, part: str) -> None:
    async with serve() as app:
        for path, body in PATHS:
            response = await app.post(path, {**body, **fields, "stream": True})
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["param"] == param
            assert part in error["message"]
        assert app.engine.requests == []


def refusing(app: ServedApp, reason: str) -> None:
    """An engine that finds something wrong with every request."""

    async def generate(_: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
        yield pb.RequestEvent(finish=pb.INVALID, error=reason)

    app.engine.generate = generate  # type: ignore[method-assign]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_by_the_engine_names_the_field_that_asked(stream: bool) -> None:
    async with serve() as app:
        refusing(app, "grammar: it allows no text")
        for path, body in PATHS:
            asked = {**body, "structured_outputs": {"json": {"$ref": "#"}}, "stream": stream, "n": 2}
            response = await app.post(path, asked)
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["param"] == "structured_outputs.json"
            assert error["message"] == "structured_outputs.json is not valid: it allows no text"


async def test_the_schemas_of_a_structural_tag_are_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = Callers(monkeypatch, structural_tag.lark, structural_tag)
    large = "{" * (MANY + 1)  # of a small body, what is read first is read on the loop
    async with serve() as app:
        for path, asked in PATHS:
            fields = {**asked, "structured_outputs": {"structural_tag": TAGGED}, "user": large}
            assert (await app.post(path, fields)).status_code == 200
        assert [each.grammar.lark for each in app.engine.requests] == [TAGGED_LARK] * len(PATHS)
    assert readings.beside_the_event_loop


async def test_a_server_may_refuse_every_constraint() -> None:
    async with serve(disable_grammar_support=True) as app:
        for fields in ({"regex": "a"}, {"response_format": {"type": "json_object"}}):
            response = await app.post("/v1/completions", {**TEXT, **fields})
            assert response.status_code == 400
            assert response.json()["error"]["param"] == next(iter(fields))
            assert "--disable-grammar-support" in response.json()["error"]["message"]
        assert (await app.post("/v1/completions", {**TEXT, "response_format": {"type": "text"}})).status_code == 200

"""TGI's `grammar` on each of its routes: what reaches the engine, and TGI's refusals word for word."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.grammar import json_schema
from gateway.grammar.json_style import OF_TGI
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import serve

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GUIDED = json_schema.guided(SCHEMA, param="", style=OF_TGI)
ANY_OBJECT = json_schema.guided({"type": "object"}, param="", style=OF_TGI)
PATHS = ("/generate", "/generate_stream", "/")

SERVED: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"type": "json", "value": SCHEMA}, {"json_schema": GUIDED}),
    ({"type": "json", "value": json.dumps(SCHEMA)}, {"json_schema": GUIDED}),
    ({"type": "json_object", "value": SCHEMA}, {"json_schema": GUIDED}),
    ({"type": "json_object"}, {"json_schema": ANY_OBJECT}),
    ({"type": "json_schema", "value": {"name": "any name", "schema": SCHEMA}}, {"json_schema": GUIDED}),
    ({"type": "regex", "value": "^a+$"}, {"regex": "^a+$"}),
]


@pytest.mark.parametrize(("grammar", "expected"), SERVED, ids=lambda value: json.dumps(value)[:60])
async def test_a_grammar_reaches_the_engine(grammar: dict[str, Any], expected: dict[str, str]) -> None:
    async with serve() as app:
        parameters = {"grammar": grammar, "max_new_tokens": 3}
        for path in PATHS:
            assert (await app.post(path, inputs="lo", parameters=parameters)).status_code == 200
        instances = [{"inputs": "lo", "parameters": parameters}]
        assert (await app.post("/vertex", instances=instances)).status_code == 200
        assert [request.grammar for request in app.engine.requests] == [pb.Grammar(**expected)] * 4


INVALID = "Input validation error: grammar is not valid: "
MISTYPED = "Failed to deserialize the JSON body into the target type: parameters.grammar"
REFUSED: list[tuple[Any, str]] = [
    ({"type": "json", "value": 5}, "Input validation error: grammar is not supported"),
    ({"type": "json", "value": [1]}, "Input validation error: grammar is not supported"),
    ({"type": "json", "value": "{"}, INVALID),
    ({"type": "json", "value": {"type": "object"}}, f"{INVALID}Grammar must have a 'properties' field"),
    ({"type": "json", "value": "[]"}, f"{INVALID}Grammar must have a 'properties' field"),
    ({"type": "json_schema", "value": {"schema": {"$ref": "#"}}}, f"{INVALID}Grammar must have a 'properties' field"),
    ({"type": "json", "value": {**SCHEMA, "not": {}}}, f"{INVALID}not cannot be enforced (at #)"),
    ({"type": "json", "value": {"properties": {"a": 1}}}, INVALID),
    ({"type": "regex", "value": "((a{100}){100}){100}"}, INVALID),
    ({"type": "regex", "value": 5}, MISTYPED),
    ({"type": "json"}, MISTYPED),
    ({"type": "json_schema", "value": "a"}, MISTYPED),
    ({"type": "json_schema", "value": {}}, MISTYPED),
    ({"type": "xml", "value": "a"}, MISTYPED),
    ({"value": "a"}, MISTYPED),
    ("a", MISTYPED),
]


@pytest.mark.parametrize(("grammar", "error"), REFUSED, ids=lambda value: json.dumps(value)[:60])
async def test_a_wrong_grammar_is_422_in_tgis_words(grammar: Any, error: str) -> None:
    async with serve() as app:
        for path in PATHS:
            response = await app.post(path, inputs="lo", parameters={"grammar": grammar})
            assert response.status_code == 422
            assert response.json()["error"].startswith(error)
            assert response.json()["error_type"] == "validation"
        assert app.engine.requests == []


async def test_a_server_may_refuse_grammars() -> None:
    async with serve(disable_grammar_support=True) as app:
        response = await app.post("/generate", inputs="lo", parameters={"grammar": {"type": "regex", "value": "a"}})
        assert response.status_code == 422
        assert response.json()["error"] == "Input validation error: grammar is not supported"
        assert (await app.post("/generate", inputs="lo", parameters={"grammar": None})).status_code == 200


async def test_what_the_engine_refuses_is_422_also_of_a_stream() -> None:
    async def generate(_: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
        yield pb.RequestEvent(finish=pb.INVALID, error="grammar: it takes too long to compile")

    async with serve() as app:
        app.engine.generate = generate  # type: ignore[method-assign]
        for path in PATHS:
            parameters = {"grammar": {"type": "regex", "value": "a+"}}
            response = await app.post(path, inputs="lo", parameters=parameters)
            assert response.status_code == 422
            assert response.json() == {"error": f"{INVALID}it takes too long to compile", "error_type": "validation"}

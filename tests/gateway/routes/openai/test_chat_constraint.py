"""What the engine is told to hold a chat's answer to, where tools, documents and reasoning come together."""

from typing import Any

from tests.gateway.grammar.llguidance_bytes import allows
from tests.gateway.routes.openai.test_chat import USER
from tests.gateway.routes.openai.tool_chats import HERMES, PARIS, PATH, ROME, TIME, WEATHER, serving

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DOCUMENT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
STRICT = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
WRONG = PARIS.replace('"Paris"', "5")


async def grammar_of(template: str = HERMES, **fields: Any) -> Any:
    async with serving(template=template) as app:
        response = await app.post(PATH, {"messages": USER, **fields})
        assert response.status_code == 200, response.text
        return app.engine.requests[0].grammar


async def test_a_call_that_must_come_fits_its_schema_and_nothing_else_does() -> None:
    grammar = await grammar_of(tools=[WEATHER, TIME], tool_choice="required")
    assert allows(grammar, PARIS) and allows(grammar, PARIS + "\n" + ROME)
    assert not any(allows(grammar, text) for text in ("", "hello", WRONG, PARIS.replace("get_weather", "other")))
    grammar = await grammar_of(tools=[WEATHER, TIME], tool_choice="required", parallel_tool_calls=False)
    assert allows(grammar, PARIS) and not allows(grammar, PARIS + "\n" + ROME)


async def test_a_function_without_parameters_takes_no_arguments() -> None:
    bare = {"type": "function", "function": {"name": "f"}}
    grammar = await grammar_of(tools=[bare], tool_choice="f")
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert allows(grammar, call) and not allows(grammar, call.replace("{}", '{"a": 1}'))


async def test_strict_tools_are_held_to_their_schemas_and_others_to_objects() -> None:
    grammar = await grammar_of(tools=[STRICT])
    assert all(allows(grammar, text) for text in ("hello world", PARIS, "hello " + PARIS))
    assert not allows(grammar, WRONG)
    grammar = await grammar_of(tools=[WEATHER, {**TIME, "function": {**TIME["function"], "strict": True}}])
    assert allows(grammar, WRONG)


async def test_where_the_model_may_choose_it_is_calls_or_the_document() -> None:
    grammar = await grammar_of(tools=[STRICT], response_format=DOCUMENT)
    assert all(allows(grammar, text) for text in (PARIS, '{"city": "Rome"}'))
    assert not any(allows(grammar, text) for text in (WRONG, "hello world", '{"city": 5}'))


async def test_a_call_that_must_come_wins_over_the_document() -> None:
    grammar = await grammar_of(tools=[WEATHER], tool_choice="required", response_format=DOCUMENT)
    assert allows(grammar, PARIS) and not allows(grammar, '{"city": "Rome"}')


async def test_tools_that_may_not_be_called_leave_the_document() -> None:
    grammar = await grammar_of(tools=[WEATHER], tool_choice="none", response_format=DOCUMENT)
    assert allows(grammar, '{"city": "Rome"}') and not allows(grammar, PARIS)


async def test_grammars_can_be_switched_off_but_not_ignored() -> None:
    async with serving(disable_grammar_support=True) as app:
        for fields in ({"tools": [WEATHER], "tool_choice": "required"}, {"tools": [STRICT]}):
            error = (await app.post(PATH, {"messages": USER, **fields})).json()["error"]
            assert error["param"] == "tools" and "--disable-grammar-support" in error["message"]
        for fields in ({}, {"parallel_tool_calls": False}):
            assert (await app.post(PATH, {"messages": USER, "tools": [WEATHER], **fields})).status_code == 200


async def test_the_strictness_of_all_tools_is_an_option() -> None:
    for level, wrong, other in (("function", True, False), ("parameter", False, False)):
        async with serving(tool_strict_level=level) as app:
            assert (await app.post(PATH, messages=USER, tools=[WEATHER])).status_code == 200
            grammar = app.engine.requests[0].grammar
            assert allows(grammar, "hello") and allows(grammar, PARIS)
            assert allows(grammar, WRONG) is wrong
            assert allows(grammar, PARIS.replace("get_weather", "other")) is other


async def test_a_tool_that_is_free_beside_a_strict_one_is_called_in_the_models_own_notation() -> None:
    where = WEATHER["function"] | {"name": "look"}  # type: ignore[operator]
    parameters = {"type": "object", "properties": {"days": {"type": "integer"}, "city": {"type": "string"}}}
    tools = [STRICT, {"type": "function", "function": {**where, "parameters": parameters}}]
    call = "<tool_call>\n<function=look>\n{}</function>\n</tool_call>"
    days, city = (f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in (("days", 3), ("city", "Rome")))
    async with serving(call.format(city + days), tool_call_parser="qwen3_coder") as app:
        answer = (await app.post(PATH, messages=USER, tools=tools)).json()["choices"][0]["message"]
        assert answer["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome", "days": 3}'
        grammar = app.engine.requests[0].grammar
        assert all(allows(grammar, call.format(each)) for each in ("", days, city + days, days + city))
        assert not allows(grammar, call.format(days.replace("days", "hours")))

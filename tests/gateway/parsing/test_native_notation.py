"""A grammar lets through what a model writes by itself: calls in its own notation, and harmony's answers."""

import pytest

from gateway.grammar.json_schema import ANY_OBJECT, guided
from gateway.parsing.calls import Arguments
from gateway.parsing.harmony import answer_grammar, or_answer
from gateway.parsing.pieces import Tool
from gateway.parsing.tool_formats import tool_format
from tests.gateway.parsing.tools_to_force import FREE, GUIDED, NATIVE, PLACE, message, spellings
from tests.gateway.parsing.walks import accepts

FREELY = {
    "qwen3_coder": "<tool_call>\n<function=look>\n<parameter=days>\n3\n</parameter>\n"
    "<parameter=city>\n7\n</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>look\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
    "<arg_key>city</arg_key>\n<arg_value>7</arg_value>\n</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="look">\n<parameter name="days">3</parameter>\n'
    '<parameter name="city">7</parameter>\n</invoke>\n</minimax:tool_call>',
    "deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="look">\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="city" string="true">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    "pythonic": '[look(days=3, city="7")]',
    "gemma4": '<|tool_call>call:look{days:3,city:<|"|>7<|"|>}<tool_call|>',
    "hermes": '<tool_call>\n{"name": "look", "arguments": {"days": 3, "city": "7"}}\n</tool_call>',
}


@pytest.mark.parametrize("name", FREELY)
def test_a_free_call_is_in_the_model_s_own_notation(name: str) -> None:
    written, tools = tool_format(name), [Tool("look", {"type": "object", "properties": FREE})]
    for words in spellings(written):
        arguments = {"look": Arguments(ANY_OBJECT, tuple(FREE))}
        grammar = written.grammar(arguments, parallel=False, token_id=words.token_id)
        assert accepts(words, grammar, FREELY[name])
        [call] = message(written, FREELY[name], tools).calls
        assert call.value == {"days": 3, "city": "7"}


@pytest.mark.parametrize("name", NATIVE)
def test_what_a_model_writes_by_itself_is_let_through(name: str) -> None:
    written = tool_format(name)
    for words in spellings(written):
        grammar = written.grammar(GUIDED, parallel=True, token_id=words.token_id)
        assert accepts(words, grammar, NATIVE[name])
        assert accepts(words, grammar, "\n\n" + NATIVE[name]) or name == "openai"


def test_harmony_s_answer_is_a_document_or_a_call_behind_reasoning() -> None:
    written, schema = tool_format("openai"), guided(PLACE, param="response_format")
    document = '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{"at": [1]}'
    for words in spellings(written):
        calls = written.grammar(GUIDED, parallel=False, token_id=words.token_id)
        either = or_answer(calls, schema, words.token_id)
        assert accepts(words, answer_grammar(schema, words.token_id), document)
        assert accepts(words, either, document) and accepts(words, either, NATIVE["openai"])
        assert not accepts(words, calls, document)
        assert not accepts(words, either, document.replace("1", "x"))

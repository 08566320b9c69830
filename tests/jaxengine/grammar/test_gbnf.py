"""A grammar in GBNF allows exactly the texts that its rules describe, as llama.cpp's parser would."""

import itertools

import pytest
from llguidance import LLMatcher, LLTokenizer

from jaxengine.grammar.grammar import Grammar
from jaxengine.grammar.source import LIMITS, library_text
from tests.jaxengine.grammar.gbnf_language import language, some_rules, written

BYTES = LLTokenizer("byte")
LONGEST = 4
TEXTS = ["".join(text) for length in range(LONGEST + 1) for text in itertools.product("abc", repeat=length)]


def allows(text: str, document: str) -> bool:
    matcher = LLMatcher(BYTES, library_text(Grammar("gbnf", text)), log_level=0, limits=LIMITS)
    assert not matcher.is_error(), matcher.get_error()
    ids = list(document.encode())
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


@pytest.mark.parametrize("seed", range(40))
def test_any_grammar_allows_what_its_rules_describe(seed: int) -> None:
    rules = some_rules(seed)
    if described := language(rules, LONGEST):
        assert {text for text in TEXTS if allows(written(rules), text)} == described


@pytest.mark.slow
def test_many_grammars_allow_what_their_rules_describe() -> None:
    for seed in range(1_000, 1_200):
        test_any_grammar_allows_what_its_rules_describe(seed)


JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws  # with escapes
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= ([ \t\n] ws)?
"""
ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        (JSON, ["{}", '{ "a":\n\n\t [1.5, {"b":null} ]}', r'{"\"é😀":"\u00e9"}'], ["[]", '{"a":01}', '{"a":"\x01"}']),
        (ARITHMETIC, ["a+b=c\n", "1 *(x_1 -2) = y\n\n2=2\n"], ["a+b\n", "=1\n", "A=1\n"]),
        ('root ::= start-x "!"\nstart-x ::= START_x | startX\nSTART_x ::= "a"\nstartX ::= "b"', ["a!", "b!"], ["!"]),
        ('root ::= start 1a ünï\nstart ::= "s"\n1a ::= "1"\nünï ::= "u"', ["s1u"], ["s"]),
        (r'root ::= [a-] [\]\[] [+--] [a&&b~~] "\]\x41/"', ["-]-&]A/", "a[,~]A/"], ["b]-&]A/", "a]*&]A/"]),
        (r"root ::= [^\x00-\x7F]+ .", ["é😀\n", "中a"], ["ab", "é"]),
        ('root ::= "" | "\x7f\t"', ["", "\x7f\t"], ["\x7f"]),
        ('root ::= (ws "x")+ ws\nws ::= " " ws | "\\n" ws | ""', ["x", "  \n x\nx\n"], ["", "y"]),
    ],
    ids=lambda value: str(value)[:20].strip() if isinstance(value, str) else None,
)
def test_what_only_gbnf_means_so(text: str, right: list[str], wrong: list[str]) -> None:
    assert {each: allows(text, each) for each in right} == dict.fromkeys(right, True)
    assert {each: allows(text, each) for each in wrong} == dict.fromkeys(wrong, False)


def test_a_rule_that_recurs_at_its_end_costs_no_more_than_a_repetition() -> None:
    spaces = " " * 5_000
    assert allows(JSON, f'{{{spaces}"a":{spaces}1}}')


@pytest.mark.parametrize(
    ("text", "reason"),
    [("root ::= a", "no rule 'a'"), ('a ::= "a"', "no rule 'root'"), ("root ::= [b-a]", "out of order"),
     ("root ::= []", "empty"), ("root ::= <[5]>", "not GBNF"), ('root ::= "a', "not GBNF")],
)  # fmt: skip
def test_what_is_wrong_is_said(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        library_text(Grammar("gbnf", text))

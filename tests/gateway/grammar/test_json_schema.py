"""What a client's schema asks is enforced, or refused by name. The judges are `jsonschema` and llguidance itself."""

import contextlib
import copy
import json
import random
import tracemalloc
from typing import Any

import jsonschema
import pytest

from gateway.errors import RequestError
from gateway.grammar import whitespace
from gateway.grammar.json_schema import ANY_OBJECT, MAX_CHARACTERS, MAX_DEPTH, guided
from gateway.grammar.json_style import OF_TGI, JsonStyle
from gateway.grammar.keywords import ANNOTATIONS, SHAPES, UNENFORCED
from gateway.grammar.schema_reader import (
    MAX_ENUM_VALUES,
    MAX_LITERAL_CHARACTERS,
    MAX_MEMBERS,
    MAX_OPTIONAL,
    MAX_PROPERTIES,
    MAX_REFERENCES,
)
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.grammar.llguidance_bytes import Refused, allows

DRAFT_4, DRAFT_7 = ("http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#")


def allowed(schema: Any, document: str, **options: Any) -> bool:
    return allows(pb.Grammar(json_schema=guided(schema, param="field", **options)), document)


def refusal(schema: Any) -> str:
    with pytest.raises(RequestError) as caught:
        guided(schema, param="field")
    assert caught.value.param == "field"
    return caught.value.message


# A schema and a document that it forbids, whatever the draft's year.
FORBIDDEN: list[tuple[dict[str, Any], Any]] = [
    ({"type": "string", "not": {"const": "a"}}, "a"),
    ({"if": {"type": "string"}, "then": {"maxLength": 0}}, "a"),
    ({"if": {"type": "string"}, "else": {"minimum": 3}}, 1),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, {"a": 1}),
    ({"type": "object", "dependentSchemas": {"a": False}}, {"a": 1}),
    ({"$schema": DRAFT_7, "type": "object", "dependencies": {"a": ["b"]}}, {"a": 1}),
    ({"type": "array", "uniqueItems": True}, [1, 1]),
    ({"type": "array", "contains": {"type": "string"}}, [1]),
    ({"type": "array", "contains": True, "minContains": 2}, [1]),
    ({"type": "array", "contains": True, "maxContains": 1}, [1, 2]),
    ({"type": "object", "propertyNames": {"maxLength": 1}}, {"aa": 1}),
    ({"type": "object", "unevaluatedProperties": False}, {"a": 1}),
    ({"type": "array", "unevaluatedItems": False}, [1]),
    ({"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a", "type": "string"}}}, 1),
    ({"type": "string", "format": "ipv4"}, "a"),
    ({"type": "string", "format": "uri-reference"}, "\\\\"),
    ({"type": "integer", "format": "int32"}, 2**31),
    ({"type": "integer", "maximum": 2**60}, 2**60 + 1),
    ({"type": "number", "exclusiveMinimum": -(2**60)}, -(2**60)),
    ({"$schema": DRAFT_4, "type": "integer", "minimum": 3, "exclusiveMinimum": True}, 3),
    ({"const": 2**53 + 1}, 2**53 + 2),
    ({"enum": ["a", [2**63]]}, [2**63 - 1]),
    ({"type": "number", "multipleOf": 0.1}, 0.25),
    ({"type": "string", "pattern": "^a+$"}, "b"),
    ({"type": "string", "pattern": "^(?!a)"}, "a"),
    ({"type": "string", "minLength": 2, "maxLength": 3}, "a"),
    ({"type": "array", "prefixItems": [{"type": "string"}]}, [1]),
    ({"$schema": DRAFT_7, "type": "array", "items": [{"type": "string"}], "additionalItems": False}, ["a", "b"]),
    ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, {"b": 1}),
    ({"type": "object", "patternProperties": {"^a": {"type": "string"}}}, {"ab": 1}),
    ({"type": "object", "required": ["a"]}, {}),
    ({"type": "object", "minProperties": 2}, {"a": 1}),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 1),
    ({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "string"}}}, "a"),
    ({"allOf": [{"type": "string"}, {"minLength": 2}]}, "a"),
    ({"$ref": "#/x/y", "x": {"y": {"type": "string"}}}, 1),
    ({"$ref": "#/$defs/a", "maxLength": 1, "$defs": {"a": {"type": "string"}}}, "aa"),
]


@pytest.mark.parametrize(("schema", "document"), FORBIDDEN, ids=lambda value: json.dumps(value)[:60])
def test_what_a_schema_forbids_is_not_written_or_the_schema_is_refused(schema: dict[str, Any], document: Any) -> None:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    if "format" not in schema:  # of which that library knows few
        assert not jsonschema.validators.validator_for(schema)(schema, format_checker=checker).is_valid(document)
    with contextlib.suppress(RequestError, Refused):
        assert not allowed(schema, json.dumps(document))


@pytest.mark.parametrize("keyword", UNENFORCED)
@pytest.mark.parametrize("draft", ["https://json-schema.org/draft/2020-12/schema", DRAFT_7, DRAFT_4])
def test_a_keyword_that_is_not_enforced_is_named_with_its_place_in_every_draft(keyword: str, draft: str) -> None:
    value: Any = {"const": 1} if keyword != "minContains" else 2
    schema = {"$schema": draft, "type": "object", "properties": {"a": {"type": "string", keyword: value}}}
    assert refusal(schema) == f"field is not valid: {keyword} cannot be enforced (at #/properties/a)"


@pytest.mark.parametrize("keyword", [each for each, harmless in UNENFORCED.items() if harmless])
def test_a_keyword_that_asks_for_nothing_is_taken(keyword: str) -> None:
    for value in UNENFORCED[keyword]:
        assert allowed({"type": ["object", "array"], keyword: value}, "{}")


def test_annotations_leave_no_trace_and_the_clients_schema_is_as_it_was() -> None:
    described = {
        "$schema": DRAFT_7, "$id": "http://example.com/a", "title": "t", "description": "d", "type": "object",
        "properties": {"title": {"type": "string", "default": "x", "examples": ["y"]}, "x-guidance": {"type": "null"}},
        "x-guidance": {"lenient": True},
    }  # fmt: skip
    before = copy.deepcopy(described)
    plain = {"type": "object", "properties": {"title": {"type": "string"}, "x-guidance": {"type": "null"}}}
    assert guided(described, param="field") == guided(plain, param="field")
    assert described == before


def test_a_clients_options_of_llguidance_are_not_obeyed_at_the_root_or_below() -> None:
    options = {"whitespace_flexible": False, "lenient": True}
    schema = {"type": "object", "x-guidance": options, "properties": {"a": {"type": "object", "x-guidance": options}}}
    assert allowed(schema, '{ "a" : { } }')


def test_whitespace_is_bounded() -> None:
    assert allowed({"type": "object"}, "{" + 20 * "\n" + "}")
    assert not allowed({"type": "object"}, "{" + 21 * "\n" + "}")
    assert allowed({"type": "object"}, "{ }", style=OF_TGI)
    assert not allowed({"type": "object"}, "{  }", style=OF_TGI)
    assert not allowed({"type": "object"}, "{ }", style=JsonStyle(whitespace.NONE))


def test_nullable_is_a_union_with_null() -> None:
    for schema in ({"type": "string", "nullable": True}, {"enum": ["a"], "nullable": True}):
        assert allowed(schema, "null")
        assert allowed(schema, '"a"')
    assert not allowed({"type": "string", "nullable": False}, "null")


def test_members_of_a_one_of_may_be_references_where_they_can_be_told_apart() -> None:
    def tagged(tag: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"kind": {"const": tag}}, "required": ["kind"]}

    members = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"type": "null"}]}
    schema = {**members, "$defs": {"a": tagged("a"), "b": tagged("b")}}
    assert allowed(schema, '{"kind":"b"}')
    assert allowed(schema, "null")
    assert not allowed(schema, '{"kind":"c"}')
    with pytest.raises(Refused, match="oneOf"):
        allowed({**members, "$defs": {"a": tagged("a"), "b": tagged("a")}}, "null")


OPEN = {"properties": {"a": {}}}
NESTED = {"properties": {"a": {"properties": {"b": {}}}}}


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        (OPEN, '{"x":1}'),
        ({"properties": {"a": OPEN}}, '{"a":{"x":1}}'),
        ({"items": OPEN}, '[{"x":1}]'),
        ({"anyOf": [{"type": "null"}, {"type": "object", **OPEN}]}, '{"x":1}'),
        ({"$ref": "#/$defs/a", "$defs": {"a": OPEN}}, '{"x":1}'),
        ({"allOf": [OPEN]}, '{"x":1}'),
        ({**OPEN, "nullable": True}, '{"x":1}'),
    ],
    ids=json.dumps,
)
def test_an_object_that_declares_properties_gets_no_others(schema: dict[str, Any], document: str) -> None:
    assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(document)), "but nothing forbids them"
    assert not allowed(schema, document)


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ({"type": "object"}, '{"x":1}'),
        ({**OPEN, "additionalProperties": True}, '{"x":1}'),
        ({**OPEN, "required": ["x"]}, '{"x":1}'),
        ({**OPEN, "patternProperties": {"x": {}}}, '{"y":1}'),
        ({"allOf": [OPEN, {"properties": {"b": {}}}]}, '{"a":1,"b":2}'),
        ({"allOf": [NESTED, {"properties": {"a": {"properties": {"c": {}}}}}]}, '{"a":{"b":1,"c":2}}'),
        ({"$ref": "#/$defs/x", "properties": {"b": {}}, "$defs": {"x": OPEN}}, '{"a":1,"b":2}'),
        ({"anyOf": [OPEN, {"properties": {"b": {}}}], "properties": {"c": {}}}, '{"a":1,"c":2}'),
        ({"allOf": [{"$ref": "#/$defs/x"}, {"required": ["q"]}], "$defs": {"x": NESTED}}, '{"a":{"x":1},"q":1}'),
        ({"oneOf": [{"type": "object", **OPEN}, {"const": 1}]}, '{"x":1}'),
    ],
    ids=json.dumps,
)
def test_objects_that_say_so_or_are_described_twice_stay_open(schema: dict[str, Any], document: str) -> None:
    assert allowed(schema, document)


def test_closing_does_not_tell_apart_what_the_schema_does_not() -> None:
    """Each object has what the other lacks, but one document fits both."""
    first = {"type": "object", "properties": {"a": {}, "c": {}}, "required": ["a"]}
    second = {"type": "object", "properties": {"c": {}}, "required": ["c"]}
    with pytest.raises(Refused, match="oneOf"):
        allowed({"oneOf": [first, second]}, '{"a":1,"c":2}')


@pytest.mark.parametrize("name", ["a", "A[int]", "a/b", "a b", "é", "a%b", "a~b"])
def test_a_definition_may_have_any_name(name: str) -> None:
    pointer = name.replace("~", "~0").replace("/", "~1").replace("%", "%25")
    schema = {"$ref": f"#/$defs/{pointer}", "$defs": {name: {"type": "null"}}}
    assert allowed(schema, "null")
    assert not allowed(schema, "1")


def test_references_by_anchor_and_by_the_roots_own_address_are_followed() -> None:
    assert allowed({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "null"}}}, "null")
    address = "http://example.com/a.json"
    assert not allowed({"$id": address, "$ref": f"{address}#/$defs/a", "$defs": {"a": {"type": "null"}}}, "1")


@pytest.mark.parametrize("target", ["http://example.com/a.json", "other.json", "#/$defs/none", "#none", "file:///a"])
def test_a_reference_out_of_the_schema_is_refused(target: str) -> None:
    assert "$ref" in refusal({"$ref": target})


def nested(levels: int) -> Any:
    schema: Any = {"type": "null"}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


def properties(count: int, *required: int) -> dict[str, Any]:
    return {"properties": {f"a{i}": True for i in range(count)}, "required": [f"a{i}" for i in required]}


TOO_MUCH: list[tuple[Any, str]] = [
    (nested(MAX_DEPTH + 1), "64 levels"),
    (properties(MAX_PROPERTIES + 1), "1000 properties"),
    (properties(MAX_OPTIONAL + 1), "300 optional properties"),
    (properties(MAX_OPTIONAL + 2, 0), "300 optional properties"),
    ({"enum": list(range(MAX_ENUM_VALUES + 1))}, "5000 values"),
    ({"anyOf": [True] * (MAX_MEMBERS + 1)}, "500 members"),
    ({"allOf": [{"oneOf": [True] * 300}, {"anyOf": [True] * 300}]}, "500 members"),
    ({"prefixItems": [{"$ref": "#"}] * (MAX_REFERENCES + 1)}, "200 references"),
    ({"const": "a" * (MAX_LITERAL_CHARACTERS + 1)}, "8192"),
    ({"enum": [{"a": ["a" * (MAX_LITERAL_CHARACTERS + 1)]}]}, "8192"),
    ({"required": ["a" * (MAX_LITERAL_CHARACTERS + 1)]}, "8192"),
    ({"x": "a" * MAX_CHARACTERS}, "65536"),
    ({"allOf": [{}] * 5_001}, "5000 schemas"),
    ({"multipleOf": 10_001}, "10000"),
    ({"multipleOf": 1.0001}, "10000"),
    ({"pattern": "a" * 2_049}, "2048"),
    ({"pattern": "(a{200}){51}"}, "10000"),
    ({"patternProperties": {"(a{200}){51}": {}}}, "10000"),
    ({"pattern": "a\0"}, "NUL"),
    ({"patternProperties": {f"{2_000 * 'a'}{i}": {} for i in range(33)}}, "65536 characters of patterns"),
]


@pytest.mark.parametrize(("schema", "limit"), TOO_MUCH, ids=lambda value: json.dumps(value)[:40])
def test_a_schema_that_is_too_large_is_refused_naming_the_limit(schema: Any, limit: str) -> None:
    assert limit in refusal(schema).replace(",", "")


def test_a_long_name_is_not_kept_again_for_each_schema_inside() -> None:
    name, levels = "a" * 1_000_000, {str(number): {} for number in range(1_000)}
    tracemalloc.start()
    try:
        assert "at most 65536" in refusal({"$defs": {name: {"$defs": levels}}})
        assert tracemalloc.get_traced_memory()[1] < 20 * len(name)
    finally:
        tracemalloc.stop()
    wrong = refusal({"$defs": {name: {"$defs": {"b": {"not": {}}}}}})
    assert wrong.endswith("(at #/$defs/aaa" + 109 * "a" + "…)")


def test_the_limits_themselves_are_allowed() -> None:
    guided(nested(MAX_DEPTH), param="field")
    guided(properties(MAX_PROPERTIES, *range(MAX_PROPERTIES)), param="field")
    guided(properties(2 * MAX_OPTIONAL + 1, MAX_OPTIONAL), param="field")
    guided({"multipleOf": 0.01, "pattern": "(a{100}){100}"}, param="field")


@pytest.mark.parametrize(
    "schema",
    [
        None, 1, [], "a", '{"a":1,"a":2}', '{"const":NaN}', '{"const":1e999}', "[" * 100_000, "", False,
        {"type": "any"}, {"type": []}, {"type": [{}]}, {"properties": []}, {"properties": {"a": 1}}, {"items": 1},
        {"enum": []}, {"enum": 1}, {"required": True}, {"required": [1]}, {"anyOf": []}, {"anyOf": [1]}, {"$ref": 1},
        {"pattern": 1}, {"minLength": -1}, {"minLength": 1.5}, {"minimum": "1"}, {"multipleOf": 0}, {"multipleOf": -1},
        {"oneOf": [{"type": "object", "properties": {"a": 1}, "required": ["a"]}] * 2}, {"nullable": 1},
        {"oneOf": [{"type": [{}]}]}, {"format": 1}, {"$id": 1, "properties": {"a": {"$id": {}}}},
    ],
    ids=lambda value: json.dumps(value)[:40],
)  # fmt: skip
def test_what_is_no_schema_is_refused_in_few_words(schema: Any) -> None:
    assert len(refusal(schema)) < 200


def test_a_schema_may_be_text_or_true_and_numbers_may_be_written_as_decimals() -> None:
    assert guided('{"type":"object"}', param="field") == ANY_OBJECT
    assert allowed(True, "[1]")
    assert allowed({"type": "string", "maxLength": 1.0}, '"a"')


VALUES: list[Any] = [
    None, True, False, 0, -1, 1.5, 2**70, 1e300, "", "a", "#", "#/$defs/a", "\x00", [], {}, [1], ["a"], [{}], {"a": 1},
    {"a": {}}, {"type": "object"}, [True, {"type": "string"}], {"$ref": "#"}, {"const": {}}, "int32", "object",
    ["null"],
]  # fmt: skip
META = jsonschema.Draft201909Validator(jsonschema.Draft201909Validator.META_SCHEMA)  # lists in `items`, and anchors


def random_schema(draw: random.Random, depth: int = 0) -> Any:
    """An object of known keywords, half of them with a value of any kind."""
    names = [*SHAPES, *UNENFORCED, *ANNOTATIONS, "const", "a"]
    schema: dict[str, Any] = {}
    for name in draw.sample(names, draw.randint(0, 4)):
        below = random_schema(draw, depth + 1) if depth < 3 else True
        schema[name] = draw.choice([draw.choice(VALUES), below, [below], {"a": below}])
    return schema


def test_of_random_schemas_each_is_refused_by_name_or_valid_when_rewritten() -> None:
    draw = random.Random(20240607)
    served = 0
    for _ in range(3_000):
        schema = random_schema(draw)
        try:
            text = guided(schema, param="field")
        except RequestError as error:
            assert error.message.startswith("field is not valid: ") and len(error.message) < 400
        else:
            served += 1
            errors = META.iter_errors(json.loads(text))
            assert not [each for each in errors if "exclusive" not in str(each.path)]  # draft 4 says true there
    assert served > 300


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ({"properties": {"a": {"properties": {"b": {}}, "minProperties": 1}}}, '{"a":{"b":1,"c":1}}'),
        ({"patternProperties": {"^a": {}}}, '{"b":1}'),
    ],
)
def test_objects_can_all_be_closed(schema: Any, document: str) -> None:
    assert not allowed(schema, document, style=JsonStyle(closed=True))


def test_an_object_that_says_what_others_it_has_is_not_closed() -> None:
    assert allowed({"properties": {"a": {}}, "additionalProperties": True}, '{"b":1}', style=JsonStyle(closed=True))
    assert allowed({"type": "object"}, '{"b":1}', style=JsonStyle(closed=True))


def test_what_would_allow_nothing_if_it_were_closed_is_refused() -> None:
    merged = {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}
    with pytest.raises(RequestError, match="disable_additional_properties"):
        guided(merged, param="field", style=JsonStyle(closed=True))


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"properties": {"a": {}}}, ['{"a":1}', "{}"], ["false", "[]", "1"]),
        ({"properties": {"a": {"properties": {"b": {}}}}, "required": ["a"]}, ['{"a":{"b":1}}'], ['{"a":1}']),
        ({"items": {"type": "integer"}}, ["[1]"], ["{}", '"a"']),
        ({"properties": {"a": {}}, "nullable": True}, ['{"a":1}', "null"], ["1"]),
        ({"properties": {"a": {"oneOf": [{"minimum": 1}]}}}, ["{}"], ["1"]),
        ({"properties": {"a": {}}, "items": {}}, ["{}", "[]", "1"], []),
        ({"properties": {"a": {}}, "type": ["object", "null"]}, ["{}", "null"], ["1"]),
        ({"properties": {"a": {}}, "enum": [1]}, ["1"], ["{}"]),
        ({"anyOf": [{"type": "string"}], "properties": {"a": {}}}, ['"a"'], ["{}"]),
        ({"allOf": [{"properties": {"a": {}}}, {"type": "integer"}]}, ["1"], ["{}"]),
    ],
)
def test_a_schema_that_declares_what_is_inside_is_of_what_has_an_inside(
    schema: Any, right: list[str], wrong: list[str]
) -> None:
    assert {text: allowed(schema, text) for text in right} == dict.fromkeys(right, True)
    assert {text: allowed(schema, text) for text in wrong} == dict.fromkeys(wrong, False)

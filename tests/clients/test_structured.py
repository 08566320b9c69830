"""Client libraries that ask for JSON, tools or a regex: what they return is what their users' types say.

The model is small and writes at temperature 1.5 where a client lets us choose: what is right here is right because it
was enforced, not because the model knew.
"""

import json
import re
from typing import Any

import jsonschema
import pytest

from tests.clients.environments import run_script
from tests.clients.test_clients import GOLDEN, MODEL
from tests.servers import Server

pytestmark = pytest.mark.slow

REGEX = r"[A-Z][a-z]{2,9} is \d{1,3} years old\."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 3},
        "born": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    },
    "required": ["name", "age", "tags", "born"],
    "additionalProperties": False,
}
# Of LangChain's tests, those that a model passes by knowing the answer, and what it would have to know.
WITS = {
    "test_tool_calling": "the argument of magic_function(3) is 3",
    "test_unicode_tool_call_integration": "the name in the question, in its script",
    "test_json_mode": "the keys that the question names: JSON mode allows any object",
    "test_agent_loop": "that the question needs the tool, which it may leave alone",
}


@pytest.fixture
def job(smollm2: Server) -> dict[str, Any]:
    asked = {"user": "Write about a person called Mary, as JSON.", "prompt": GOLDEN["prompt"], "model": MODEL}
    return {"url": smollm2.url, **asked, "schema": SCHEMA, "regex": REGEX}


def valid(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA, format_checker=jsonschema.FormatChecker())
    return True


def test_openai_parses_into_pydantic_models(job: dict[str, Any]) -> None:
    seen = run_script("modern", "openai_structured", **job)
    assert_documents(seen)
    assert_calls(seen)
    assert_streams(seen)
    assert seen["cut"] == "length"


def assert_documents(seen: dict[str, Any]) -> None:
    for choice in (*seen["report"], *seen["tool_and_format"]):
        assert (choice["parsed"], choice["finish_reason"], choice["refusal"]) == ("Report", "stop", None), choice
        assert not choice["calls"]


def assert_calls(seen: dict[str, Any]) -> None:
    for choice in seen["required"]:
        assert choice["calls"] in ([["GetWeather", "GetWeather"]], [["add", "Add"]]), choice
        assert choice["finish_reason"] == "tool_calls" and choice["content"] is None
    for choice in seen["named"]:
        assert choice["calls"] == [["add", "Add"]] and choice["finish_reason"] == "stop", choice
    (text, *calls) = seen["none"][0]
    assert text and not calls
    assert any(seen["auto"][0]), "a text or a call, as the model likes"


def assert_streams(seen: dict[str, Any]) -> None:
    report = seen["report_stream"]
    assert report["parsed"] == "Report" and report["fragments"]["content"] == report["content"]
    assert {"content.delta", "content.done"} <= set(report["kinds"])
    for name in ("required_stream", "named_stream"):
        choice = seen[name]
        assert choice["calls"] in ([["GetWeather", "GetWeather"]], [["add", "Add"]]), choice
        assert json.loads(choice["fragments"]["arguments"]) == choice["arguments"][0]
        assert "tool_calls.function.arguments.done" in choice["kinds"]
    assert seen["named_stream"]["calls"] == [["add", "Add"]]


def knowing(name: str) -> bool:
    test = name.partition("::")[2].partition("[")[0]
    return test.removesuffix("_async") in WITS


def test_langchains_own_suite_for_tools_and_structured_output(job: dict[str, Any]) -> None:
    seen = run_script("modern", "langchain_structured", **job)
    failed = {name: reason for name, reason in seen.items() if reason != "passed" and not knowing(name)}
    assert not failed
    assert len(seen) > 20


def test_instructor(job: dict[str, Any]) -> None:
    seen = run_script("instructor", "instructor_modes", **job)
    partial = seen.pop("partial")
    assert partial["count"] > 1 and set(partial["last"]) == {"name", "age", "mood"}
    any_object = seen.pop("JSON")  # the schema is in the prompt only: the model may write another object
    assert "IncompleteOutput" in any_object.get("error", "IncompleteOutput") or "validation" in any_object["error"]
    for mode, answer in seen.items():
        assert set(answer.get("person", answer)) == {"name", "age", "mood"}, (mode, answer)


def test_tgis_client_with_a_grammar(job: dict[str, Any]) -> None:
    seen = run_script("classic", "tgi_grammar", **job)
    assert valid(seen["json"]) and valid(seen["stream"])
    assert re.fullmatch(REGEX, seen["regex"])
    assert set(seen["finish_reason"].values()) == {"eos_token"}
    assert "properties" in seen["refusal"]


def test_huggingface_hub_with_response_format_tools_and_grammar(job: dict[str, Any]) -> None:
    seen = run_script("modern", "hub_structured", **job)
    assert valid(seen["response_format"]) and valid(seen["json"])
    assert re.fullmatch(REGEX, seen["regex"])
    for name in ("required", "named", "stream"):
        called, arguments, *has_id = seen[name]
        assert called == "record" and valid(arguments) and all(has_id)


def test_litellm_with_response_format_and_tools(job: dict[str, Any]) -> None:
    for answers in run_script("litellm", "litellm_structured", **job).values():
        assert valid(answers["json"])
        for called, arguments in (answers["call"], answers["stream"]):
            assert called == "record" and valid(arguments)


def test_pydantic_ai(job: dict[str, Any]) -> None:
    seen = run_script("pydantic_ai", "pydantic_ai_agent", **job)
    assert set(seen["tool"]) == set(seen["native"]) == {"name", "age"}

"""Bodies that take long to parse: they are bounded by what parsing costs, and parsed in a thread."""

import json
from typing import Any

import pytest

from gateway.http import body
from gateway.http.body import LARGE, MANY, MAX_CONTAINERS, MAX_NAMES, MAX_VALUES
from gateway.http.strict_json import MAX_DEPTH
from tests.gateway.fixtures import Callers, serve

ROUTES: dict[str, dict[str, Any]] = {
    "/generate": {"inputs": "hello"},
    "/v1/completions": {"prompt": "hello"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/tokenize": {"prompt": "hello"},
    "/invocations": {"inputs": "hello"},
    "/v2/models/ensemble/infer": {
        "inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["lo"]}]
    },
    "/v2/models/ensemble/generate": {"text_input": "hello"},
    "/api/v1/generate": {"prompt": "hello"},
}
COSTLY = {
    "objects and lists": b",".join([b"[]"] * (MAX_CONTAINERS + 1)),
    "values": b",".join([b"1"] * (MAX_VALUES + 1)),
    "names": b"{" + b",".join(b'"%d":1' % number for number in range(MAX_NAMES + 1)) + b"}",
}
LIMITS = {"objects and lists": MAX_CONTAINERS, "values": MAX_VALUES, "names": MAX_NAMES}


def with_extra(path: str, values: bytes) -> bytes:
    """The route's body, with `values` in a field that it does not know."""
    return json.dumps(ROUTES[path]).encode()[:-1] + b',"extra":[' + values + b"]}"


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("what", COSTLY)
async def test_more_values_than_can_be_read_quickly_are_refused_naming_the_limit(path: str, what: str) -> None:
    async with serve() as app:
        answer = await app.raw(path, with_extra(path, COSTLY[what]))
    assert answer.status_code == (400 if path.startswith(("/v", "/api/")) else 422)
    assert f"more than {LIMITS[what]} {what}" in answer.text


@pytest.mark.parametrize(
    "text", [",[{" * 100_000, ":" * 100_000, '\\",[' * 50_000, "\\\\" * 50_000 + '\\"' + "[" * 50_000]
)
async def test_what_stands_in_strings_is_no_value(text: str) -> None:
    async with serve() as app:
        answer = await app.post("/v1/chat/completions", {**ROUTES["/v1/chat/completions"], "extra": text})
    assert answer.status_code == 200


async def test_a_body_of_many_objects_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be a JSON schema, which takes longer to check than to parse."""
    async with serve() as app:
        readers = Callers(monkeypatch, body._checked, body)
        schema = {"allOf": [{}] * (MANY + 1)}
        assert (await app.post("/v1/completions", prompt="lo", guided_json=schema)).status_code == 200
        assert readers.beside_the_event_loop


@pytest.mark.parametrize(
    "path", ["/generate", "/v1/completions", "/invocations", "/v2/models/ensemble/infer", "/api/v1/generate"]
)
async def test_a_long_body_is_read_beside_the_event_loop(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as app:
        readers = Callers(monkeypatch, body._checked, body)
        answer = await app.raw(path, with_extra(path, b'"' + b"x" * LARGE + b'"'))
        assert answer.status_code == 200
        assert readers.beside_the_event_loop


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/invocations", "/v2/models/ensemble/infer"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"[" * 300 + b"]" * 300, f"nests deeper than {MAX_DEPTH} levels"),
        (b"[" * 15_000 + b"]" * 15_000, f"nests deeper than {MAX_DEPTH} levels"),
        (rb'"\ud800 "', "holds half a character"),
        (b'"\xff"', "is not valid UTF-8"),
        (b"1,", "is not valid JSON"),
    ],
)
async def test_what_json_allows_and_we_do_not_is_not_called_invalid_json(path: str, value: bytes, reason: str) -> None:
    async with serve() as app:
        answer = await app.raw(path, with_extra(path, value))
    assert answer.status_code == 400
    assert f"the body {reason}" in answer.text

"""Several API keys: which are accepted, what callers share, and that one key cannot take every permit."""

from pathlib import Path

import httpx
import pytest

from gateway.config.command_line import parse
from gateway.request.admission import Admission, Overloaded
from gateway.request.keys import ANYBODY, Keys
from gateway.request.shared_counters import SharedCounters
from jaxengine.options.option import UsageError
from tests.gateway.fixtures import ServedApp, serve

TWO = "first key\nsecond-key"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("key", ["first key", "second-key"])
async def test_every_key_is_accepted(key: str) -> None:
    async with serve(api_key=TWO) as app:
        assert (await app.http.post("/generate", json={"inputs": "lo"}, headers=bearer(key))).status_code == 200


@pytest.mark.parametrize("key", ["first", "first key\nsecond-key", "FIRST KEY", "second-key ,", ""])
async def test_nothing_else_is_accepted(key: str) -> None:
    async with serve(api_key=TWO) as app:
        response = await app.http.get("/info", headers={b"authorization": f"Bearer {key}".encode()})
        assert response.status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/chat/completions",
        "/generate",
        "/v2/models/ensemble/infer",
        "/api/v1/generate",
    ],
)
@pytest.mark.parametrize(
    ("headers", "let_in"),
    [
        ([("x-api-key", "second-key")], True),
        ([("x-api-key", "second-key"), ("authorization", "Bearer second-key")], True),
        ([("x-api-key", "of a gateway"), ("authorization", "Bearer second-key")], True),
        ([("x-api-key", "second-key"), ("authorization", "Bearer wrong")], False),
        ([("x-api-key", "second-key"), ("authorization", "")], False),
        ([("x-api-key", "second-key"), ("x-api-key", "second-key")], False),
        ([("x-api-key", "SECOND-KEY")], False),
        ([("x-api-key", "first key\nsecond-key")], False),
        ([("x-api-key", "Bearer second-key")], False),
        ([("x-api-key", "")], False),
    ],
)
async def test_an_x_api_key_stands_in_for_a_bearer_key(path: str, headers: list[tuple[str, str]], let_in: bool) -> None:
    async with serve(api_key=TWO) as app:
        given = [(name.encode(), value.encode()) for name, value in headers]
        status = (await app.http.post(path, json={}, headers=given)).status_code
    assert (status != 401) is let_in


async def test_an_x_api_key_tells_the_caller() -> None:
    async with serve(api_key=TWO) as app:
        ask = {"model": "tgi", "max_tokens": 3, "messages": [{"role": "user", "content": "lo"}]}
        for key in ("second-key", "first key"):
            await app.http.post("/v1/messages", json=ask, headers={"x-api-key": key})
        assert [request.caller for request in app.engine.requests] == [1, 0]


async def scrape(app: ServedApp, key: str | None = None) -> httpx.Response:
    """`/metrics` once the model is known."""
    assert app.engine.description is not None
    app.gateway.metrics.engine_ready(0, app.engine.description, app.gateway.max_input_tokens)
    return await app.http.get("/metrics", headers={} if key is None else bearer(key))


async def test_metrics_name_the_model_only_to_clients_that_send_a_key() -> None:
    async with serve(api_key=TWO) as app:
        anybodys, theirs = (await scrape(app)).text, (await scrape(app, "second-key")).text
        assert "mock/model" not in anybodys and 'model_name="mock/model"' in theirs
        named = anybodys.replace('model_name="model"', 'model_name="mock/model"')
        assert named.replace('{model="model"', '{model="mock/model"') == theirs, "a series has another shape"


async def test_metrics_take_an_x_api_key() -> None:
    async with serve(api_key=TWO) as app:
        theirs = (await scrape(app, "second-key")).text
        assert (await app.http.get("/metrics", headers={"x-api-key": "second-key"})).text == theirs
        assert (await app.http.get("/metrics", headers={"x-api-key": "wrong"})).status_code == 401


async def test_metrics_refuse_a_wrong_key() -> None:
    async with serve(api_key=TWO) as app:
        refused = await scrape(app, "wrong")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("key", [None, "whatever"])
async def test_without_keys_metrics_name_the_model_to_all(key: str | None) -> None:
    async with serve() as app:
        assert 'model_name="mock/model"' in (await scrape(app, key)).text


def test_keys_come_from_a_file_and_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n  two  \n")
    assert parse([f"--api-key-file={file}"], {"API_KEY": "three\nfour"}).keys == ["three", "four", "one", "two"]
    file.write_text("\n")
    with pytest.raises(UsageError, match="at least one key"):
        parse([f"--api-key-file={file}"], {})
    file.write_text("böse")
    with pytest.raises(UsageError, match="printable ASCII") as wrong:
        parse([f"--api-key-file={file}"], {})
    assert "böse" not in str(wrong.value)


def test_a_file_of_keys_that_cannot_be_read_is_a_wrong_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"^--api-key-file must be UTF-8 text that can be read$"):
        parse([f"--api-key-file={file}"], {})

    def denied(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(UsageError, match=r"^--api-key-file must be UTF-8 text that can be read$"):
        parse([f"--api-key-file={file}"], {})


def test_callers_with_different_keys_share_no_cache_unless_the_option_says_so() -> None:
    keys = Keys(["a", "b"])
    a, b = keys.caller(["Bearer a"]), keys.caller(["Bearer b"])
    assert a is not None and b is not None
    assert a.salt and b.salt and a.salt != b.salt
    again = Keys(["a", "b"]).caller(["Bearer a"])
    assert again is not None and again.salt != a.salt, "the salt of another boot must be unknown"
    shared = Keys(["a", "b"], share_cache=True)
    assert {caller.salt for key in "ab" if (caller := shared.caller([f"Bearer {key}"]))} == {b""}


def test_one_key_or_none_shares_one_cache() -> None:
    assert Keys([]).caller([]) is ANYBODY
    only = Keys(["a"]).caller(["Bearer a"])
    assert only is not None and only.salt == b""


async def test_a_clients_own_salt_stays_within_its_keys() -> None:
    async with serve(api_key=TWO) as app:
        for key in ("first key", "second-key"):
            body = {"prompt": "lo", "cache_salt": "mine"}
            await app.http.post("/v1/completions", json=body, headers=bearer(key))
        first, second = (request.cache_salt for request in app.engine.requests)
        assert first != second
        assert first.endswith(b"mine") and second.endswith(b"mine")


async def test_the_engine_gets_each_requests_caller() -> None:
    async with serve(api_key=TWO) as app:
        for key in ("second-key", "first key"):
            await app.http.post("/generate", json={"inputs": "lo"}, headers=bearer(key))
        assert [request.caller for request in app.engine.requests] == [1, 0]


def test_one_key_cannot_take_every_permit() -> None:
    admission = Admission(20, 100, SharedCounters(callers=2))
    held = []
    with pytest.raises(Overloaded):
        for _ in range(20):
            held.append(admission.request(1, caller=0))
            held[-1].__enter__()
    assert admission.active == 16
    with admission.request(1, caller=1):
        assert admission.active == 17
    for each in held[:-1]:
        each.__exit__(None, None, None)
    assert admission.active == 0


def test_without_several_keys_every_permit_may_be_taken() -> None:
    admission = Admission(4, 100)
    with admission.request(3), admission.request(1):
        assert admission.active == 4

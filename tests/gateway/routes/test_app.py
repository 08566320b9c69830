"""The application as a whole: public routes, unknown routes, CORS, documentation and the API key."""

import re
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from gateway.app import create_app
from tests.gateway.fixtures import ServedApp, serve

PUBLIC = {
    *(("GET", path) for path in ("/", "/health", "/ping", "/health/live", "/health/ready", "/metrics")),
    ("POST", "/ping"),  # SageMaker's
    *(("GET", f"/v2/health/{probe}") for probe in ("live", "ready")),
    *(("GET", path) for path in ("/playground", "/dashboard", "/web/{version}/{path:path}")),  # hold no data
}
BODY = {"inputs": "hello"}


def routes(within: FastAPI | APIRouter) -> Iterator[tuple[str, str]]:
    """Method and path of every route, also of included routers, which newer FastAPI keeps apart."""
    for route in within.routes:
        if isinstance(route, APIRoute):
            yield from ((method, route.path) for method in route.methods)
        else:
            included = getattr(route, "original_router", None)
            assert included is not None, f"{route} is no route this test understands"
            yield from routes(included)


async def test_every_route_is_either_on_the_public_list_or_asks_for_the_key() -> None:
    async with serve(api_key="hush") as app:
        found = set(routes(app.asgi))
        answers = {each: await app.http.request(each[0], re.sub(r"{.*?}", "x", each[1])) for each in found}
    assert {each for each, answer in answers.items() if answer.status_code != 401} == PUBLIC
    assert {("POST", "/generate"), ("POST", "/v1/chat/completions"), ("GET", "/info"), ("GET", "/docs")} <= found


@pytest.mark.parametrize("prefix", ["", "/llm"])
async def test_behind_a_root_path_every_route_is_the_same_whether_the_proxy_strips_it_or_not(prefix: str) -> None:
    async with serve(root_path="/llm", api_key="hush") as app:
        http, key = app.http, {"authorization": "Bearer hush"}
        assert (await http.get(f"{prefix}/health")).status_code == 200
        assert (await http.get(f"{prefix}/info")).status_code == 401
        assert (await http.get(f"{prefix}/v1/models", headers=key)).json()["object"] == "list"
        assert "message" in (await http.get(f"{prefix}/v1/nowhere", headers=key)).json()["error"]
        assert isinstance((await http.get(f"{prefix}/nowhere", headers=key)).json()["error"], str)
        assert (await http.get(f"{prefix}/generate", headers=key)).headers["allow"] == "POST"
        document = (await http.get(f"{prefix}/openapi.json", headers=key)).json()
        assert document["servers"] == [{"url": "/llm"}] and "/v1/models" in document["paths"]


async def test_a_root_path_is_a_whole_segment_and_has_a_root_of_its_own() -> None:
    async with serve(root_path="/llm") as app:
        assert (await app.http.get("/llmhealth")).status_code == 404
        assert (await app.http.get("/llm")).status_code == 200
        assert (await app.http.get("/llm/llm/health")).status_code == 404


async def test_the_docs_page_asks_below_wherever_it_stands() -> None:
    async with serve() as app:
        page = (await app.http.get("/docs")).text
        assert not re.search(r"""fetch\((path|["'`]/)""", page)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "hush",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic hush",
        "Bearer hush extra",
        "Bearer HUSH",
        "Bearer é",
    ],
)
async def test_a_missing_or_wrong_key_is_401(header: str | None) -> None:
    async with serve(api_key="hush") as app:
        headers = {} if header is None else {b"authorization": header.encode("latin-1")}
        tgi = await app.http.post("/generate", json=BODY, headers=headers)
        openai = await app.http.post("/v1/completions", json={"prompt": "hello"}, headers=headers)
        anthropic = await app.http.post("/v1/messages", json={}, headers=headers)
    ways = "send `Authorization: Bearer <key>`, or `x-api-key: <key>` as Anthropic's clients do"
    message = f"the API key is missing or wrong: {ways}"
    assert (anthropic.status_code, anthropic.json()["error"]["type"]) == (401, "authentication_error")
    assert (tgi.status_code, tgi.json()) == (401, {"error": message})
    assert openai.status_code == 401
    assert openai.json()["error"]["code"] == "invalid_api_key"
    assert openai.headers["www-authenticate"] == tgi.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("header", ["Bearer hush", "bearer hush", "BEARER hush"])
async def test_the_key_opens_and_its_scheme_may_be_written_in_any_case(header: str) -> None:
    async with serve(api_key="hush") as app:
        answer = await app.http.post("/generate", json=BODY, headers={"authorization": header})
        assert answer.status_code == 200


async def test_two_authorization_headers_are_refused_even_if_one_is_right() -> None:
    async with serve(api_key="hush") as app:
        headers = [("authorization", "Bearer hush"), ("authorization", "Bearer hush")]
        assert (await app.http.post("/generate", json=BODY, headers=headers)).status_code == 401


async def test_the_key_is_checked_before_the_body() -> None:
    async with serve(api_key="hush") as app:
        assert (await app.raw("/generate", b"not json")).status_code == 401


async def test_unknown_paths_and_methods_are_worded_as_their_neighbours() -> None:
    async with serve() as app:
        unknown = await app.http.get("/v1/nope")
        assert unknown.status_code == 404 and unknown.json()["error"]["type"] == "invalid_request_error"
        assert "/docs" in unknown.json()["error"]["message"]
        method = await app.http.get("/generate")
        assert method.status_code == 405 and method.headers["allow"] == "POST"
        assert method.json() == {"error": "Method Not Allowed: /docs lists every route"}
        nowhere = await app.post("/nope", inputs="lo")
        assert (nowhere.status_code, nowhere.json()) == (404, {"error": "Not Found: /docs lists every route"})
        assert (await app.http.put("/ping")).headers["allow"] == "GET, HEAD, POST"
        assert (await app.http.put("/v1/responses/resp_a")).headers["allow"] == "DELETE, GET, HEAD"
        assert (await app.http.put("/v1/responses/input_tokens")).headers["allow"] == "POST"  # though it might be an id


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/"])
async def test_head_answers_as_get_for_those_who_only_probe(path: str) -> None:
    async with serve() as app:
        assert (await app.http.head(path)).status_code == (await app.http.get(path)).status_code == 200
        assert (await app.http.head("/generate")).status_code == 405


async def test_a_path_with_a_slash_too_many_is_no_route_rather_than_a_redirect_to_what_the_host_header_says() -> None:
    async with serve() as app:
        for path in ("/v1/completions/", "/generate/"):
            assert (await app.http.post(path, json=BODY)).status_code == 404


async def preflight(app: ServedApp, origin: str) -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-lang",  # the last is OpenAI's SDK's
    }
    return await app.http.options("/generate", headers=headers)


async def test_browsers_may_call_from_the_origins_that_are_given_and_from_no_other() -> None:
    async with serve() as app:
        assert "access-control-allow-origin" not in (await preflight(app, "https://a.example")).headers
    async with serve(cors_allow_origin=("https://a.example",)) as app:
        assert (await preflight(app, "https://b.example")).status_code == 400
        answer = await preflight(app, "https://a.example")
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        assert "access-control-allow-credentials" not in answer.headers
        seen = (await app.http.get("/health", headers={"origin": "https://a.example"})).headers
        assert "retry-after" in seen["access-control-expose-headers"]


async def test_the_docs_need_nothing_from_elsewhere_and_describe_every_route_of_both_dialects() -> None:
    async with serve() as app:
        page = (await app.http.get("/docs")).text
        api = (await app.http.get("/openapi.json")).json()
        assert (await app.http.get("/api-doc/openapi.json")).json() == api
    assert "http://" not in page and "https://" not in page
    assert {"/generate", "/generate_stream", "/", "/info", "/tokenize", "/health"} <= api["paths"].keys()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models"} <= api["paths"].keys()


async def test_no_body_is_read_that_no_route_wants() -> None:
    async with serve(api_key="hush") as app:
        for path, content_type, status in (
            ("/generate", "application/json", 401),
            ("/v1/chat/completions", "application/json", 401),
            ("/nowhere", "application/json", 404),
            ("/info", "application/json", 405),
            ("/generate", "text/plain", 415),
        ):
            headers = {"content-type": content_type}
            if status == 415:
                headers["authorization"] = "Bearer hush"
            answer = await app.http.post(path, content=unread(), headers=headers)
            assert answer.status_code == status


async def unread() -> AsyncIterator[bytes]:
    raise AssertionError("the body was read")
    yield b""


async def test_the_probe_route_that_vertex_assigns_answers_a_full_server_too() -> None:
    async with serve(aip_health_route="/v1/probe") as app:
        transport = httpx.ASGITransport(create_app(app.gateway, max_requests=0))
        async with httpx.AsyncClient(transport=transport, base_url="http://full") as http:
            assert (await http.get("/info")).status_code == 503
            assert (await http.get("/health")).status_code == (await http.get("/v1/probe")).status_code == 200

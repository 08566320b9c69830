"""Which dialect words the errors that no route words."""

from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from gateway.routes import registry
from gateway.routes.registry import DIALECTS, dialect_at
from tests.gateway.fixtures import serve


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/models", "OpenAI"),
        ("/v1/nowhere", "OpenAI"),
        ("/v1/messages", "Anthropic"),
        ("/v1/messages/nowhere", "Anthropic"),
        ("/v1", "TGI"),
        ("/v2", "KServe"),
        ("/v2/models/a/nowhere", "KServe"),
        ("/api/v1/generate", "KoboldAI"),
        ("/api/nowhere", "KoboldAI"),
        ("/api", "TGI"),
        ("/api-doc/openapi.json", "TGI"),
        ("/generate", "TGI"),
        ("/", "TGI"),
        ("*", "TGI"),
    ],
)
def test_the_longest_prefix_of_a_path_tells_its_dialect(path: str, name: str) -> None:
    assert dialect_at(path).name == name


async def test_a_further_dialect_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def worded(status: int, message: str) -> Any:
        return PlainTextResponse(message, status)

    other = replace(DIALECTS[0], name="other", prefix="/v1/other/", routers=(), no_such_route=worded)
    monkeypatch.setattr(registry, "DIALECTS", (other, *DIALECTS))
    async with serve() as served:
        assert (await served.http.get("/v1/other/nowhere")).text == "Not Found: /docs lists every route"
        assert "message" in (await served.http.get("/v1/nowhere")).json()["error"]
        assert isinstance((await served.http.get("/nowhere")).json()["error"], str)

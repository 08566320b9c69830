"""Requests that clients and proxies write in other forms; routes/test_app.py tests them within an application."""

import pytest
from starlette.types import Receive, Scope, Send

from gateway.http.rewrites import Mounted, OriginForm


class Seen:
    """An application that keeps what it is asked."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://proxied:80/v1/models", "/v1/models"),
        ("HTTPS://proxied/info", "/info"),
        ("http://proxied", "/"),
        ("/http://within", "/http://within"),
        ("*", "*"),
    ],
)
async def test_a_target_that_is_a_whole_url_counts_by_its_path(target: str, path: str) -> None:
    seen = Seen()
    await OriginForm(seen)({"type": "http", "path": target, "raw_path": target.encode()}, None, None)  # type: ignore[arg-type]
    assert (seen.scopes[0]["path"], seen.scopes[0]["raw_path"]) == (path, path.encode())


@pytest.mark.parametrize(
    ("prefix", "path", "below"),
    [
        ("/llm", "/llm/v1/models", "/v1/models"),
        ("/llm", "/llm", "/"),
        ("/llm", "/llms", "/llms"),
        ("", "/info", "/info"),
    ],
)
async def test_routes_are_below_the_prefix_that_the_server_around_names(prefix: str, path: str, below: str) -> None:
    seen = Seen()
    await Mounted(seen)({"type": "http", "path": path, "root_path": prefix}, None, None)  # type: ignore[arg-type]
    assert (seen.scopes[0]["path"], seen.scopes[0]["root_path"]) == (below, "")

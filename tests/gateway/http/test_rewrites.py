"""Requests that clients and proxies write in other forms; routes/test_app.py tests them within an application."""

import pytest
from starlette.types import Receive, Scope, Send

from gateway.http.rewrites import OriginForm


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
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    await OriginForm(app)({"type": "http", "path": target, "raw_path": target.encode()}, None, None)  # type: ignore[arg-type]
    assert (seen[0]["path"], seen[0]["raw_path"]) == (path, path.encode())

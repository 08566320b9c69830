"""Requests as the routes expect them: the method, and the path, that a client or a proxy wrote in another form."""

from starlette.types import ASGIApp, Receive, Scope, Send

HEAD_ALONE = "textgen.head_alone"  # in the ASGI scope: the client wants no body


class HeadAsGet:
    """ASGI: HEAD, by which some health checks probe, is routed as GET. The server leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") == "HEAD":
            scope = {**scope, "method": "GET", HEAD_ALONE: True}
        await self._app(scope, receive, send)


class OriginForm:
    """ASGI: of a target that is a whole URL, as proxies are sent it, the path counts (RFC 9112, 3.2.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith("/"):
            scheme, found, rest = scope["path"].partition("://")
            if found and scheme.lower() in ("http", "https"):
                _, _, raw_rest = scope["raw_path"].partition(b"://")
                path, raw_path = rest.partition("/")[2], raw_rest.partition(b"/")[2]
                scope = {**scope, "path": f"/{path}", "raw_path": b"/" + raw_path}
        await self._app(scope, receive, send)


class Mounted:
    """ASGI: the path below the prefix at which another server has put the application. The scope names the prefix."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (prefix := scope.get("root_path")):
            scope = {**scope, "path": _below(prefix, scope["path"]), "root_path": ""}
        await self._app(scope, receive, send)


class RootPath:
    """ASGI: every route answers with `prefix` and without it, since some proxies strip it and others do not."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", ""))
        await self._app({**scope, "path": _below(self._prefix, path)}, receive, send)


def _below(prefix: str, path: str) -> str:
    """`path` without a prefix of whole segments, if it has it."""
    rest = path.removeprefix(prefix) or "/"
    return rest if rest.startswith("/") else path

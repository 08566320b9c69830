"""A Hugging Face Hub on localhost: the few routes that fetching a snapshot needs, over files on disk."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SHA = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves `repositories[id]`, a directory; ids in `gated` answer as gated, others as unknown.

    The first `cuts` downloads of weights break off in the middle. Ids in `private` are known to those who send the
    token beside them.
    """

    def __init__(self, repositories: dict[str, Path], gated: frozenset[str] = frozenset()) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories, self.gated = repositories, gated
        self.requests: list[str] = []
        self.sent = 0  # bytes of files
        self.cuts = 0
        self.ranges = True  # whether parts of files are sent
        self.answers = threading.Event()  # what files wait for
        self.answers.set()
        self.private: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def fake_hub(repositories: dict[str, Path], gated: frozenset[str] = frozenset()) -> Iterator[FakeHub]:
    hub = FakeHub(repositories, gated)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        path = self.path.split("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path):
            self._describe(*match.groups())
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._send_file(*match.groups())
        else:
            self._fail(404, "")

    do_HEAD = do_GET

    def _describe(self, repository: str, kind: str, revision: str) -> None:
        if self._refused(repository, revision):
            return
        files = sorted(path for path in self.server.repositories[repository].rglob("*") if path.is_file())
        names = {str(path.relative_to(self.server.repositories[repository])): path for path in files}
        siblings = [{"rfilename": name, "size": path.stat().st_size} for name, path in names.items()]
        tree = [
            {"type": "file", "path": name, "size": path.stat().st_size, "oid": _etag(path)}
            for name, path in names.items()
        ]
        self._send_json(tree if kind == "tree" else {"id": repository, "sha": SHA, "siblings": siblings})

    def _send_file(self, repository: str, revision: str, name: str) -> None:
        if self._refused(repository, revision):
            return
        self.server.answers.wait(10)
        path = self.server.repositories[repository] / name
        if not path.is_file():
            self._fail(404, "EntryNotFound")
            return
        headers = {"ETag": f'"{_etag(path)}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes"}
        whole = path.read_bytes()
        asked = self.server.ranges and re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, end = (int(asked[1]), int(asked[2] or len(whole)) + 1) if asked else (0, len(whole))
        body = whole[start:end]
        if asked:
            headers["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{len(whole)}"
        cut = self.command == "GET" and name.endswith(".safetensors") and self.server.cuts > 0
        self.server.cuts -= cut
        self.server.sent += len(body) * (self.command == "GET")
        self._send(body, headers, 206 if asked else 200, len(body) // 2 if cut else None)

    def _refused(self, repository: str, revision: str) -> bool:
        if repository in self.server.gated:
            self._fail(403, "GatedRepo")
        elif repository not in self.server.repositories or not self._may_see(repository):
            self._fail(401, "RepoNotFound")
        elif revision not in ("main", SHA):
            self._fail(404, "RevisionNotFound")
        else:
            return False
        return True

    def _may_see(self, repository: str) -> bool:
        token = self.server.private.get(repository)
        return token is None or self.headers["authorization"] == f"Bearer {token}"

    def _fail(self, status: int, code: str) -> None:
        self._send(b"", {"X-Error-Code": code, "X-Error-Message": code}, status)

    def _send_json(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, body: bytes, headers: dict[str, str], status: int = 200, sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:sent])

    def log_message(self, *_: object) -> None:
        """Tests read `requests` instead."""


def _etag(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()

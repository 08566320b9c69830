"""The pages' files: what is in them, and how they are served."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import httpx
import pytest

from gateway.routes.pages import accepts
from gateway.web import __file__ as package
from gateway.web.site import site
from tests.gateway.fixtures import serve

STATIC = Path(package).parent / "static"
VENDOR = STATIC / "vendor"
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_every_vendored_file_is_the_one_that_the_manifest_names_with_its_licence() -> None:
    rows = json.loads((VENDOR / "manifest.json").read_text())
    for row in rows:
        assert hashlib.sha256((VENDOR / row["file"]).read_bytes()).hexdigest() == row["sha256"], row["file"]
        for each in (row, *row.get("holds", ())):
            assert re.search(r"MIT|Apache|Mozilla", (VENDOR / each["licence_file"]).read_text()), each
    named = {row["file"] for row in rows} | {
        each["licence_file"] for row in rows for each in (row, *row.get("holds", ()))
    }
    assert {each.name for each in VENDOR.iterdir()} == named | {"manifest.json"}


def test_no_file_of_ours_names_another_host_or_holds_an_inline_script_or_style() -> None:
    ours = [each for each in STATIC.rglob("*.*") if each.parent != VENDOR]
    assert len(ours) > 10
    for path in ours:
        content = path.read_text()
        assert not re.search(r"""(src|href|from|import|fetch)\W{1,4}https?://""", content), path
        assert not re.search(r"<script>|<style|\sstyle=\"|\son[a-z]+=\"", content), path


@pytest.mark.parametrize("name", ["playground", "dashboard"])
async def test_a_page_and_all_that_it_names_are_served_under_the_policy_without_a_key(name: str) -> None:
    async with serve(api_key="hush") as app:
        page = await app.http.get(f"/{name}", headers=BROWSER)
        named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        files = {path: await app.http.get(f"/{path}") for path in named}
    assert len(named) >= 4
    for path, answer in {name: page, **files}.items():
        assert answer.status_code == 200, path
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    pictures = re.findall(r"img-src ([^;]+);", page.headers["content-security-policy"])
    assert pictures == (["'self' data:"] if name == "playground" else ["'self'"])
    kinds = {path.rpartition(".")[2]: answer.headers["content-type"].split(";")[0] for path, answer in files.items()}
    assert kinds == {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert page.headers["cache-control"] == "no-cache"
    assert all("immutable" in answer.headers["cache-control"] for answer in files.values())


async def test_modules_import_what_exists() -> None:
    for path in STATIC.rglob("*.js"):
        for name in re.findall(r"""from "(\.[^"]+)";""", path.read_text()) if path.parent != VENDOR else ():
            assert (path.parent / name).is_file(), f"{path} imports {name}"


async def test_files_are_packed_for_those_who_unpack() -> None:
    path = f"/web/{site().version}/common/style.css"
    async with serve() as app:
        packed = await app.http.get(path, headers={"accept-encoding": "gzip"})
        plain = await app.http.get(path, headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
    assert packed.content == plain.content == (STATIC / "common/style.css").read_bytes()
    assert int(packed.headers["content-length"]) == len(gzip.compress(plain.content)) < len(plain.content)
    assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"


async def test_a_file_of_another_version_is_served_but_not_kept_and_others_are_not_found() -> None:
    async with serve() as app:
        older = await app.http.get("/web/0123456789abcdef/common/style.css")
        nothing = [await app.http.get(f"/web/x/{path}") for path in ("nothing.js", "../site.py", "%2e%2e/site.py", "")]
    assert (older.status_code, older.headers["cache-control"]) == (200, "no-store")
    assert {each.status_code for each in nothing} == {404}


@pytest.mark.parametrize(
    ("root_path", "asked", "location"), [(None, "/", "playground"), ("/llm", "/llm", "/llm/playground")]
)
async def test_the_root_sends_browsers_to_the_page_and_tells_others_the_state(
    root_path: str | None, asked: str, location: str
) -> None:
    async with serve(root_path=root_path, api_key="hush") as app:
        browser = await app.http.get(asked, headers={**BROWSER, "host": "evil.example"})
        others = [await app.http.get(asked, headers={"accept": each}) for each in ("*/*", "application/json")]
        assert (browser.status_code, browser.headers["location"]) == (307, location)
        assert {(each.status_code, each.content) for each in others} == {(200, b"")}


async def test_disabled_pages_do_not_exist_and_the_root_is_a_probe_to_everyone() -> None:
    async with serve(disable_ui=True) as app:
        answers: list[httpx.Response] = [
            await app.http.get(path, headers=BROWSER)
            for path in ("/playground", "/dashboard", f"/web/{site().version}/common/style.css")
        ]
        root = await app.http.get("/", headers=BROWSER)
    assert {each.status_code for each in answers} == {404}
    assert (root.status_code, root.content) == (200, b"")


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, br", False),
        ("gzip;q=0.001", True),
        ("xgzip", False),
        ("", False),
        ("*", False),
    ],
)
def test_a_preference_counts_unless_its_weight_is_nothing(header: str, named: bool) -> None:
    assert accepts(header, "gzip") is named


async def test_a_page_that_the_browser_has_is_not_sent_again() -> None:
    async with serve() as app:
        first = await app.http.get("/playground", headers=BROWSER)
        again = await app.http.get("/playground", headers={**BROWSER, "if-none-match": first.headers["etag"]})
        plain = await app.http.get(
            "/playground", headers={"accept-encoding": "identity", "if-none-match": first.headers["etag"]}
        )
    assert (first.status_code, again.status_code, again.content, plain.status_code) == (200, 304, b"", 200)

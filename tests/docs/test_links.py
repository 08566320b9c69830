"""No link of a document is dead: files are there, and so are the headings that a link names."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.processes import ROOT

SKIPPED = {"node_modules", "build", "dist", "shared"}
LINK = re.compile(r"(?<!\\)\]\(([^()\s]+(?:\([^()\s]*\))?)\)")
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`[^`\n]*`")  # of code: what looks like a link in it is none
HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)


def documents() -> list[str]:
    """Every Markdown file of the tree, but of hidden folders, which virtual environments are."""
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*.md"))
    return sorted(str(path) for path in found if not any(p in SKIPPED or p.startswith(".") for p in path.parts))


def anchors(text: str) -> set[str]:
    """The names of headings as GitHub makes them: small letters, dashes for spaces, a number if one comes again."""
    seen: Counter[str] = Counter()
    made = set()
    for heading in HEADING.findall(CODE.sub("", text)):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        made.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return made


def problem(document: Path, link: str) -> str | None:
    path, _, anchor = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    if not target.is_relative_to(ROOT) or not target.exists():
        return f"{link}: there is no such file"
    if anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
        return f"{link}: {target.name} has no such heading"
    return None


@pytest.mark.parametrize("name", documents())
def test_no_link_is_dead(name: str) -> None:
    document = ROOT / name
    links = [link for link in LINK.findall(SPAN.sub("", CODE.sub("", document.read_text()))) if "://" not in link]
    assert [found for link in links if (found := problem(document, link))] == []


@pytest.mark.parametrize("link", ["no/such.md", "docs/design.md#no-such-heading", "#no-such-heading", "../.."])
def test_a_dead_link_would_be_found(link: str) -> None:
    assert problem(ROOT / "README.md", link)


def test_headings_are_named_as_github_names_them() -> None:
    text = "# Fields of `/v1`\n## Will it fit?\n## [Anthropic's](x.md) API\n```\n# none\n```\n## Will it fit?\n"
    assert anchors(text) == {"fields-of-v1", "will-it-fit", "anthropics-api", "will-it-fit-1"}


def test_every_page_of_docs_can_be_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"(docs/{page.name})" not in readme] == []

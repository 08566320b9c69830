"""`--help`, the READMEs and the code say the same: a change of one fails here until the others follow."""

import dataclasses
import re

import pytest

from gateway import child_process
from gateway.benchmark.options import BenchmarkOptions
from gateway.config.command_line import FOREIGN, parse
from gateway.config.compatibility import MISSING
from gateway.config.options import rows
from gateway.processes import engine_process
from jaxengine.options.option import flag
from jaxengine.options.plan import PlanOptions
from jaxengine.options.visible_devices import VARIABLE as VISIBLE_DEVICES
from tests.processes import ROOT

ROWS = {row.name: row for row in rows()}
PAGES = [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]
READMES = {name: (ROOT / name).read_text() for name in ("README.md", "gateway/README.md", *PAGES)}
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
OF_OTHERS = {"--skip-engine", "--rounds", "--peer"}  # of `python -m tests.bench`
OF_OTHERS |= {flag(row.name) for row in dataclasses.fields(PlanOptions)}  # of `text-generation-server plan`
OF_OTHERS |= {flag(row.name) for row in dataclasses.fields(BenchmarkOptions)}  # of `text-generation-benchmark`


@pytest.fixture
def help_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as done:
        parse(["--help"], {})
    assert done.value.code == 0
    return capsys.readouterr().out


def described(text: str) -> dict[str, str]:
    """Each option's own lines of `--help`, by its flag."""
    parts = re.split(r"\n  (?=-)", text)
    return {part.split()[0]: part.partition("\n\n")[0] for part in parts[1:]}


def test_help_lists_every_option_once_in_the_tables_order_and_nothing_else(help_text: str) -> None:
    assert list(described(help_text)) == ["-h,", *map(flag, ROWS)]


@pytest.mark.parametrize("name", ROWS)
def test_help_shows_an_options_values_meaning_and_default(help_text: str, name: str) -> None:
    row, text = ROWS[name], " ".join(described(help_text)[flag(name)].split())
    value = row.metadata["parse"]
    assert value.shown in text or f"; one of {', '.join(value.choices)}" in text
    assert row.metadata["help"] in text
    given = re.search(r" \[([^][]*)\]$", text)
    if given:
        assert getattr(parse([f"{flag(name)}={given[1]}"], {}), name) == row.default
    else:
        assert row.default in (None, ())


def test_help_has_its_groups(help_text: str) -> None:
    titles = [row.metadata["group"] for row in ROWS.values() if row.metadata["group"]]
    assert re.findall(r"^(\S.*):$", help_text, re.MULTILINE) == ["options", *titles]


def test_options_without_effect_come_last_under_a_title_of_their_own() -> None:
    no_effect = [row.metadata["no_effect"] for row in ROWS.values()]
    first = no_effect.index(True)
    assert all(no_effect[first:])
    assert list(ROWS.values())[first].metadata["group"] == "Taken from TGI"


@pytest.mark.parametrize("name", READMES)
def test_a_readme_names_no_option_that_does_not_exist(name: str) -> None:
    known = {flag(row) for row in (*ROWS, *MISSING)} | {"--help"} | OF_OTHERS
    assert set(FLAG.findall(READMES[name])) <= known


@pytest.mark.parametrize("name", READMES)
def test_a_readme_names_no_variable_that_is_not_read(name: str) -> None:
    of_options = {row.metadata["variable"] or name.upper() for name, row in ROWS.items()} | FOREIGN.keys()
    of_options |= {VISIBLE_DEVICES, *engine_process.NAMES, *child_process.FILES}  # passed on to those that read them
    for variable in re.findall(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+)`", READMES[name]):
        assert variable in of_options, variable


def test_defaults_in_the_table_of_differences_are_the_defaults() -> None:
    """Written as `--name` (90 s)."""
    said = re.findall(r"`--([a-z-]+)` \(([0-9.]+) s[);]", "".join(READMES.values()))
    assert said
    for name, seconds in said:
        assert ROWS[name.replace("-", "_")].default == float(seconds)


def test_the_readme_names_every_package_of_the_tree() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages <= set(re.findall(r"^\| `(\w+)/` \|", READMES["README.md"], re.MULTILINE))

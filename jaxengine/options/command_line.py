"""The engine's command line, both ways: arguments to `ServeOptions`, and `ServeOptions` to arguments."""

import argparse
import dataclasses
import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from jaxengine.options import values
from jaxengine.options.option import UsageError, flag, read, written
from jaxengine.options.parser import CHOICE, Parser
from jaxengine.options.table import ServeOptions
from jaxengine.options.values import Value

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Table = TypeVar("Table", bound="DataclassInstance")


SHORT = 40  # characters of choices that stand beside an option in `--help`; longer ones are listed below it


def parse(argv: Sequence[str]) -> ServeOptions:
    """Raises UsageError, see `parse_as`."""
    parser = Parser(
        prog="text-generation-server serve",
        usage="%(prog)s --uds-path PATH [OPTIONS]",
        description="Run one engine process, which text-generation-launcher starts and watches.",
    )
    return parse_as(ServeOptions, parser, argv)


def parse_as(table: type[Table], parser: Parser, argv: Sequence[str]) -> Table:
    """What `argv` says, by the options of `table`, which `parser` is given.

    Raises:
        UsageError: a value is wrong, two contradict each other, or an option is unknown or missing.
    """
    rows = {row.name: row for row in dataclasses.fields(table)}
    for title, names in sections(table).items():
        group = parser.add_argument_group(title)
        for name in names:
            add_argument(group, rows[name])
    given = {name: text for name, text in vars(parser.parse_args(argv)).items() if text is not None}
    try:
        return table(**{name: _value(rows[name], given[name]) for name in given})
    except ValueError as error:  # two options that contradict each other
        raise UsageError(str(error)) from None


def sections(table: "type[DataclassInstance]") -> dict[str | None, list[str]]:
    """The options of `table` by concern: its own first, then those of each table that it inherits, under its title."""
    own = [each for each in table.__mro__ if dataclasses.is_dataclass(each)]
    rows = {row.name for row in dataclasses.fields(table)}
    found: dict[str | None, list[str]] = {}
    for each in own:
        names = [name for name in inspect.get_annotations(each) if name in rows]
        rows -= {*names}
        if names:
            found.setdefault(vars(each).get("title"), []).extend(names)
    return found


def arguments(options: ServeOptions) -> list[str]:
    """The command line that `parse` makes `options` of."""
    every = ((row, getattr(options, row.name)) for row in dataclasses.fields(options))
    return _arguments((row, value) for row, value in every if value is not None and not _is_unset_flag(row, value))


def given(options: "DataclassInstance", names: Sequence[str]) -> list[str]:
    """As a command line, those of the options `names` that are not left at their defaults."""
    rows = (row for row in dataclasses.fields(options) if row.name in names)
    return _arguments((row, value) for row in rows if (value := getattr(options, row.name)) != row.default)


def _arguments(values: "Iterable[tuple[dataclasses.Field[Any], Any]]") -> list[str]:
    """One word for each value; a tuple has several."""
    return [_argument(row, each) for row, value in values for each in (value if isinstance(value, tuple) else [value])]


def add_groups(parser: Parser, rows: "Iterable[dataclasses.Field[Any]]") -> None:
    """Let `parser` take the options of `rows`. One that names a group begins it in `--help`."""
    group = parser.add_argument_group()
    for row in rows:
        if row.metadata["group"]:
            group = parser.add_argument_group(row.metadata["group"])
        add_argument(group, row)


def add_argument(parser: "argparse._ActionsContainer", row: "dataclasses.Field[Any]") -> None:
    """Let `parser` take the option of `row`, as text, and describe it in `--help`."""
    parse = row.metadata["parse"]
    if row.metadata["positional"]:
        parser.add_argument(row.name, nargs="?", help=_help(row), metavar=row.name.upper())
        return
    names = [flag(row.name), *filter(None, [row.metadata["short"]])]
    form: dict[str, Any] = {"required": True} if row.default is dataclasses.MISSING else {}
    if parse is values.flag:
        form |= {"nargs": "?", "const": "true"}
    if isinstance(row.default, tuple):
        form |= {"nargs": "+", "action": "extend"}
    parser.add_argument(*names, dest=row.name, default=None, help=_help(row), metavar=_shown(parse), **form)


def _value(row: "dataclasses.Field[Any]", given: str | list[str]) -> Any:
    """The value of an option, of which there are several where its default is a tuple."""
    if isinstance(given, list):
        return tuple(read(row, flag(row.name), text) for text in given)
    return read(row, flag(row.name), given)


def _is_unset_flag(row: "dataclasses.Field[Any]", value: Any) -> bool:
    return row.metadata["parse"] is values.flag and value == row.default


def _argument(row: "dataclasses.Field[Any]", value: Any) -> str:
    return flag(row.name) if value is True else f"{flag(row.name)}={written(value)}"


def _shown(value: Value) -> str:
    return CHOICE if value.choices and len(value.shown) > SHORT else value.shown


def _help(row: "dataclasses.Field[Any]") -> str:
    parse, default = row.metadata["parse"], written(row.default)
    choices = f"; one of {', '.join(parse.choices)}" if _shown(parse) != parse.shown else ""
    if isinstance(row.default, float):
        default = f"{row.default:g}"
    shown = "" if row.default in (None, (), dataclasses.MISSING) else f" [{default}]"
    return f"{row.metadata['help']}{choices}{shown}".replace("%", "%%")

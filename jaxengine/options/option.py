"""One row of a table of options: what is known of an option besides its name and type.

A table is a frozen dataclass whose fields are made by `option`. The gateway's table of options has the same rows.
"""

import dataclasses
import sys
from typing import Any

from jaxengine.options.values import Value


class UsageError(Exception):
    """A wrong option. The message names the option, the value and what would be right."""


def flag(name: str) -> str:
    """How a field is written on the command line."""
    return "--" + name.replace("_", "-")


def option(
    default: Any,
    parse: Value,
    help: str,
    *,
    short: str | None = None,
    secret: bool = False,
    in_environment: bool = True,
    variable: str = "",
    no_effect: bool = False,
    group: str = "",
    after: str = "",
    positional: bool = False,
) -> Any:
    """One row: `parse` makes the value out of text. With a tuple as default an option takes several.

    `variable` is the environment variable that sets it, if that has another name.
    A `positional` one has no flag and stands by itself.
    An `no_effect` option has no effect; its help says what happens instead. With `group` a group of `--help` begins.
    An option of a table that the launcher's inherits is listed in the launcher's `--help` behind the option `after`.
    """
    metadata = {
        "parse": parse,
        "help": f"no effect: {help}" if no_effect else help,
        "short": short,
        "secret": secret,
        "in_environment": in_environment,
        "variable": variable,
        "no_effect": no_effect,
        "group": group,
        "after": after,
        "positional": positional,
    }
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


def read(row: "dataclasses.Field[Any]", source: str, text: str) -> Any:
    """The value that `text` means for an option. Raises UsageError naming `source`, a flag or a variable."""
    try:
        return row.metadata["parse"](_decoded(text))
    except ValueError as error:
        shown = "" if row.metadata["secret"] else f" {text!r}"
        raise UsageError(f"{source}{shown} {error}") from None


def _decoded(text: str) -> str:
    """`text`, which logs, messages and answers must be able to hold. Python keeps bytes that it cannot decode as
    surrogates, which nothing else takes.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        raise ValueError(f"must be text in {encoding}: give it another name, or set LC_ALL=C.UTF-8") from None
    return text


def written(value: Any) -> str:
    """`value` as it would be given."""
    return str(value).lower() if isinstance(value, bool) else str(value)

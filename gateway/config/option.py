"""One row of the table of options: what is known of an option besides its name and type."""

import dataclasses
from typing import Any

from gateway.config.values import Value


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
    idle: bool = False,
    group: str = "",
) -> Any:
    """One row: `parse` makes the value out of text. With a tuple as default an option takes several.

    An `idle` option has no effect; its help says what happens instead. With `group` a group of `--help` begins.
    """
    metadata = {
        "parse": parse,
        "help": f"no effect: {help}" if idle else help,
        "short": short,
        "secret": secret,
        "in_environment": in_environment,
        "idle": idle,
        "group": group,
    }
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)

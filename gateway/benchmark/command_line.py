"""`parse`: `BenchmarkOptions` from the command line and, of TGI's options, from the environment; also `--help`.

The command line wins over the environment. An empty environment variable counts as not set.
"""

import argparse
import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.benchmark.options import BenchmarkOptions
from jaxengine.options.command_line import add_groups
from jaxengine.options.option import UsageError, flag, read
from jaxengine.options.parser import Parser


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> BenchmarkOptions:
    """Each call draws a seed if none is given.

    Raises:
        UsageError: a value is wrong, two contradict each other, or an option is unknown.
    """
    given = vars(_parser().parse_args(argv))
    if given["url"] is not None and given["master_shard_uds_path"] is not None:  # a variable may be for others
        raise UsageError("--master-shard-uds-path excludes --url: one of them is measured")
    settings: dict[str, Any] = {}
    for row in dataclasses.fields(BenchmarkOptions):
        variable = row.name.upper()
        if (value := given[row.name]) is not None:
            settings[row.name] = _read(row, flag(row.name), value)
        elif row.name == "api_key" and given["url"] is None:
            continue  # in the environment it is for others: the server beside this engine, say
        elif row.metadata["in_environment"] and environ.get(variable):
            settings[row.name] = _read(row, variable, environ[variable])
    settings.setdefault("seed", secrets.randbits(31))
    return BenchmarkOptions(**settings)


def _read(row: "dataclasses.Field[Any]", source: str, given: str | list[str]) -> Any:
    if isinstance(given, list):
        return tuple(read(row, source, text) for text in given)
    return read(row, source, given)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="text-generation-benchmark",
        usage="%(prog)s [OPTIONS]",
        description="Measure an engine over its socket as TGI's benchmark does, or any OpenAI or TGI server.",
        epilog="Of TGI's options, but --batch-size, each can also be set by the environment variable of its name.",
    )
    add_groups(parser, dataclasses.fields(BenchmarkOptions))
    return parser

"""`parse`: `Options` from the command line and the environment; also `--help`.

The command line wins over the environment. An empty environment variable counts as not set.
"""

import argparse
import dataclasses
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.config.compatibility import MISSING
from gateway.config.options import Options, rows
from jaxengine.options.command_line import add_groups
from jaxengine.options.option import UsageError, flag, read
from jaxengine.options.parser import Parser

BETWEEN = re.compile(r",(?![^{}]*})")  # several values of one variable, which may be objects of JSON
FOREIGN = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "ALLOW_RUNTIME_LORA_UPDATING"}  # others' variables, and our name


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Each option from the command line, else from the environment, else its default in the table.

    Raises:
        UsageError: a value is wrong, or an option is unknown or not supported.
    """
    given = vars(_parser().parse_args(argv))
    environ = {ours: environ[theirs] for theirs, ours in FOREIGN.items() if theirs in environ} | dict(environ)
    if given["nnodes"] is not None or environ.get("LWS_GROUP_SIZE") == "1":  # then a pod is no part of a group
        environ = {name: value for name, value in environ.items() if not name.startswith("LWS_")}
    _refuse_missing(given, environ)
    return Options(**dict(_settings(given, environ)))


def _settings(given: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for row in dataclasses.fields(Options):
        repeated = isinstance(row.default, tuple)
        if (value := given[row.name]) is not None:
            source = flag(row.name)
        elif value := _meant(row, environ) if row.metadata["in_environment"] else None:
            source = variable_of(row)
        else:
            continue
        texts = value if isinstance(value, list) else BETWEEN.split(value) if repeated else [value]
        parsed = tuple(read(row, source, text) for text in texts)
        yield row.name, parsed if repeated else parsed[0]


def variable_of(row: "dataclasses.Field[Any]") -> str:
    """The environment variable that sets an option."""
    return row.metadata["variable"] or row.name.upper()


def _meant(row: "dataclasses.Field[Any]", environ: Mapping[str, str]) -> str | None:
    """What the environment says of an option, unless a container's run-time said it of something else."""
    value = environ.get(variable_of(row))
    if not value:
        return None
    of_the_container = row.name == "hostname" and not _is_address(value)
    of_a_service = row.name.endswith("port") and re.match("(tcp|udp|sctp)://", value)  # Kubernetes' PROMETHEUS_PORT
    return None if of_the_container or of_a_service else value


def _refuse_missing(given: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    for name, harmless in MISSING.items():
        for source, value in ((flag(name), given[name]), (name.upper(), environ.get(name.upper()))):
            if value and value.lower() not in harmless:
                raise UsageError(f"{source} {value!r} is not supported by this server")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="text-generation-launcher",
        stray="--model-id names the model",
        usage="%(prog)s [OPTIONS]",
        description="Serve a language model on TGI's routes and OpenAI's /v1.",
        epilog="Every option can also be set by the environment variable of its name, in capitals with underscores, "
        "but --env and --master-port; of --nnodes, --node-rank and --master-addr the variables are those that "
        "LeaderWorkerSet sets in Kubernetes.",
    )
    add_groups(parser, rows())
    for name in MISSING:
        parser.add_argument(flag(name), dest=name, nargs="?", const="true", default=None, help=argparse.SUPPRESS)
    return parser


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

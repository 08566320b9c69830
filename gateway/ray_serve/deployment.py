"""From options to a deployment. Options are checked before Serve starts a replica, which it would try three times."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.exceptions import RayServeException

from gateway.config import values
from gateway.config.command_line import parse
from gateway.config.ngrok_options import OF_NGROK
from gateway.config.options import Options
from gateway.parsing.formats import check_parsers
from gateway.processes.engine_process import EngineCommand, command
from gateway.ray_serve.replica import OF_A_GROUP, OF_THE_PROXY, Replica
from jaxengine.options.command_line import parse_as
from jaxengine.options.option import UsageError, flag, option, written
from jaxengine.options.parser import Parser

OF_A_MACHINE = (values.existing_file, values.existing_directory, values.key_file, values.token_file)
STOP_SECONDS = 20.0  # beyond the grace time: Serve looks every 2 s whether requests run, engines have 5 s to end
HEALTH_PERIOD_SECONDS, HEALTH_TIMEOUT_SECONDS = 5.0, 10.0  # Serve replaces a replica after three failures


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Arguments of `build` that are Serve's and not the launcher's. A Serve config may say this, and more, itself."""

    num_gpus: float | None = option(None, values.number(0, 1024), "GPUs of a replica; 0 for a CPU")
    min_replicas: int = option(1, values.whole(0, 10_000), "fewest replicas, beside max_replicas")
    max_replicas: int | None = option(None, values.whole(1, 10_000), "most replicas: their number follows the requests")


def build(arguments: dict[str, Any]) -> serve.Application:
    """The application. `arguments` are the launcher's options, `model-id` or `model_id`, and those of `Scale`.

    Raises:
        RayServeException: an option is unknown or wrong, in the launcher's words. Serve shows those as they are.
    """
    return application(arguments)


def application(arguments: Mapping[str, Any], engine: EngineCommand = command) -> serve.Application:
    """As `build`, with the engine process that `engine` gives the command line of."""
    try:
        given = {name.replace("-", "_"): value for name, value in arguments.items() if value is not None}
        asked = {row.name: given.pop(row.name) for row in dataclasses.fields(Scale) if row.name in given}
        scale = parse_as(Scale, Parser(), argv(asked))
        return deployment(_checked(given), scale).bind(argv(given), engine)
    except UsageError as error:
        raise RayServeException(str(error)) from None


def argv(given: Mapping[str, Any]) -> list[str]:
    """The command line. A list is an option that is repeated, a mapping is JSON."""
    words = []
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            words.append(f"{flag(name)}={json.dumps(each) if isinstance(each, Mapping) else written(each)}")
    return words


def _checked(given: Mapping[str, Any]) -> Options:
    """The options, as far as can be said on this machine: files need only be on those of the replicas."""
    for name in (*OF_THE_PROXY, *OF_NGROK):
        if name in given:
            raise UsageError(f"{flag(name)} is not a replica's: Ray Serve's proxy listens, see its http_options")
    for name in OF_A_GROUP:
        if name in given:
            raise UsageError(f"{flag(name)} is not a replica's: under Ray Serve, each is on one machine")
    files = {row.name for row in dataclasses.fields(Options) if row.metadata["parse"] in OF_A_MACHINE}
    options = parse(argv({name: value for name, value in given.items() if name not in files}), {})
    check_parsers(options)
    if options.sharded and options.num_shard is None:
        raise UsageError("--sharded true takes all devices: under Ray Serve, --num-shard says how many a replica has")
    return options


def deployment(options: Options, scale: Scale) -> Any:
    """The deployment, of which a Serve config may override whatever is said here."""
    from gateway.processes.http_process import request_limit  # not earlier: it imports prometheus_client, see `Replica`

    gpus = (options.num_shard or 1) * options.replicas if scale.num_gpus is None else scale.num_gpus
    sized = serve.deployment(serve.ingress()(TextGeneration)).options(
        ray_actor_options={"num_gpus": gpus},
        max_ongoing_requests=2 * request_limit(options),  # the replica itself refuses, and says when to come again
        graceful_shutdown_timeout_s=options.graceful_termination_timeout + STOP_SECONDS,
        health_check_period_s=HEALTH_PERIOD_SECONDS,
        health_check_timeout_s=HEALTH_TIMEOUT_SECONDS,
    )
    if scale.max_replicas is None:
        return sized
    bounds = {"min_replicas": scale.min_replicas, "max_replicas": scale.max_replicas}
    return sized.options(autoscaling_config={**bounds, "target_ongoing_requests": target(options)})


def target(options: Options) -> int:
    """How many requests keep a replica busy: the rows of a step, if they are said, and half of its permits at most."""
    permits = options.max_concurrent_requests
    rows = permits if options.max_batch_size is None else options.max_batch_size * options.replicas
    return max(1, min(rows, permits // 2))


class TextGeneration:
    """What Serve calls in a replica."""

    def __init__(self, argv: list[str], engine: EngineCommand) -> None:
        self.replica = Replica(argv, engine)

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Called next. Requests come once it has returned."""
        return await self.replica.start()

    async def check_health(self) -> None:
        self.replica.check()

    async def __del__(self) -> None:
        """Called once no request is running."""
        if hasattr(self, "replica"):  # its options may have been refused
            await self.replica.stop()

"""`text-generation-server plan`: whether a model fits, for how many requests, and how fast it can be at most.

The fifth place where engine and converters meet. Nothing is loaded and no device is used: what an engine decides when
it starts is decided here by the same code, for devices that need not be there.
"""

import dataclasses
import json
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from convert.errors import USAGE, CheckpointError
from convert.outline import Outline, open_outline
from convert.source import with_rope
from jaxengine.capacity import advice, machine
from jaxengine.capacity.compiler import compiled
from jaxengine.capacity.fit import Fit, Need, Temporaries, estimated
from jaxengine.capacity.machine import Machine
from jaxengine.capacity.report import Plan, facts
from jaxengine.capacity.text import text
from jaxengine.options.adapters import NamedAdapter, named_adapters
from jaxengine.options.command_line import given, parse_as
from jaxengine.options.option import UsageError
from jaxengine.options.parser import Parser
from jaxengine.options.plan import PlanOptions
from jaxengine.options.table import CheckpointOptions, ComputeOptions
from jaxengine.request.interface import OpenModel
from jaxengine.startup.place import DoesNotFit
from jaxengine.telemetry.standard_streams import say

DOES_NOT_FIT, INTERRUPTED = 1, 130  # exit codes
TABLES = (CheckpointOptions, ComputeOptions)  # of the launcher's options too
THE_LAUNCHERS = [row.name for table in TABLES for row in dataclasses.fields(table)]
THE_LAUNCHERS += ["cuda_memory_fraction", "huggingface_hub_cache"]
SAYS = "Tell whether a model fits on some devices, for how many requests, and how fast it can be at most."


def main(argv: Sequence[str]) -> int:
    """Print a plan. Returns the exit code: 0 where the model fits, 1 where not; a failure is one line on stderr."""
    jax.config.update("jax_platforms", "cpu")  # a GPU that is here may be at work
    logging.getLogger("jaxengine").setLevel(logging.ERROR)  # the plan itself says what an engine would warn of
    try:
        parser = Parser(prog="text-generation-server plan", usage="%(prog)s [MODEL_ID] [OPTIONS]", description=SAYS)
        options = parse_as(PlanOptions, parser, argv)
        made = plan(options)
    except CheckpointError as error:
        return _fail(error, error.exit_code)
    except (UsageError, ValueError) as error:
        return _fail(error, USAGE)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    said = say(json.dumps(facts(made), indent=2) if options.json else text(made))
    return said or (0 if made.fit else DOES_NOT_FIT)


def _fail(error: object, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


def plan(options: PlanOptions) -> Plan:
    """The plan that `options` ask for.

    Raises:
        ValueError: they contradict each other, the model or the devices. CheckpointError, which is one: the model is
            not to be had, or not known enough.
    """
    where = _machine(options)
    outline = _outline(options)
    planner = Planner(outline.model, named_adapters(options.lora_adapters))
    splits = {count: planner.tried(options, where, count) for count in _shards(options, where)}
    devices = _chosen(splits)
    need = planner.need(options, where, devices, compiled if options.compile else estimated)
    try:
        fit, problem = need.fit(), ""
    except DoesNotFit as error:
        fit, problem = None, str(error)
    return Plan(
        model=outline.model.model_id,
        known_from=outline.known_from,
        compiled=options.compile,
        need=need,
        fit=fit,
        problem=problem,
        splits=splits,
        remedies=() if fit else advice.remedies(options, where, devices, planner.fit),
        command=shlex.join(_command(options, where, devices)),
    )


@dataclass(frozen=True)
class Planner:
    """Plans for one model, with the adapters that are named."""

    model: OpenModel
    adapters: Sequence[NamedAdapter]

    def need(self, options: PlanOptions, where: Machine, devices: int, temporaries: Temporaries = estimated) -> Need:
        return Need.of(self.model, options.engine_options(devices), where, self.adapters, temporaries)

    def fit(self, options: PlanOptions, where: Machine, devices: int) -> Fit:
        """Raises ValueError, of which DoesNotFit is one."""
        return self.need(options, where, devices).fit()

    def tried(self, options: PlanOptions, where: Machine, devices: int) -> Fit | ValueError:
        try:
            return self.fit(options, where, devices)
        except ValueError as error:
            return error


def _machine(options: PlanOptions) -> Machine:
    try:
        gpu, count = machine.here() if options.devices is None else machine.named(options.devices)
    except ValueError as error:
        raise ValueError(f"--devices {options.devices or 'is not given, and'} {error}") from None
    return Machine.of(gpu, count, options.cuda_memory_fraction)


def _shards(options: PlanOptions, where: Machine) -> list[int]:
    """Over how many devices an engine may be split, so that none is left over, or as many as asked for."""
    if options.num_shard is None:
        return [count for count in range(1, where.count + 1) if where.count % count == 0]
    if options.num_shard > where.count:
        raise ValueError(f"--num-shard {options.num_shard} needs so many devices, and --devices has {where.count}")
    return [options.num_shard]


def _chosen(splits: dict[int, Fit | ValueError]) -> int:
    """The best that fits; else the largest for which only memory lacks, else the first."""
    if fits := [made for made in splits.values() if isinstance(made, Fit)]:
        return advice.best(fits).devices
    return max((count for count, made in splits.items() if isinstance(made, DoesNotFit)), default=min(splits))


def _outline(options: PlanOptions) -> Outline:
    engine = options.engine_options(1)
    made = open_outline(
        options.model_id,
        options.revision,
        cache_dir=options.huggingface_hub_cache,
        drafter=engine.speculation.model if engine.speculation else None,
        language_model_only=options.language_model_only,
    )
    if options.rope_scaling or options.rope_factor:
        model = with_rope(made.model, options.rope_scaling or "linear", options.rope_factor or 1.0)
        return dataclasses.replace(made, model=model)
    return made


def _command(options: PlanOptions, where: Machine, devices: int) -> list[str]:
    """How the launcher is told the same."""
    model = ["--model-id", options.model_id] if options.model_id else []
    counts = {"--num-shard": devices, "--replicas": where.count // devices}
    split = [word for flag, count in counts.items() if count > 1 for word in (flag, str(count))]
    return ["text-generation-launcher", *model, *split, *given(options, THE_LAUNCHERS)]

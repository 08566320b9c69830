"""The engine process: options in, `convert` and `Engine` joined, the rest is `jaxengine.service.process`.

One of the two places where engine and converters meet. JAX is imported only on the loading thread, so that the socket
is open, and the gateway informed, long before.
"""

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxengine.group.membership import Membership
from jaxengine.lifetime import die_with_parent
from jaxengine.options.adapters import NamedAdapter, named_adapters
from jaxengine.options.command_line import parse
from jaxengine.options.option import UsageError
from jaxengine.options.table import ServeOptions
from jaxengine.request.interface import LOADING
from jaxengine.rpc import transport
from jaxengine.rpc.progress import OPENING, WAITING
from jaxengine.service import process
from jaxengine.service.adapter_record import AdapterRecord
from jaxengine.service.process import Loaded, Progress, StartupError
from jaxengine.telemetry import logs
from jaxengine.telemetry.tracing import Tracing, TracingUnavailable

if TYPE_CHECKING:
    from convert.source import OpenModel
    from jaxengine.engine.engine import Engine
    from jaxengine.group.leader import Leader
    from jaxengine.group.replay import Replay

logger = logging.getLogger(__name__)

# For fetching the model only: nothing that runs afterwards may read them, the process that compiles included.
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN")

MB = 10**6

# Progress bars and pip's chatter, which are not JSON, and which several engines would mix.
SILENCE = {"TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PIP_QUIET": "1"}


def main(argv: Sequence[str]) -> int:
    """Serve one model until SIGTERM. Returns the exit code; a failure is one line on stderr."""
    logs.configure("--json-output" in argv)
    try:
        options = parse(argv)
        tracing = Tracing.to(options.otlp_endpoint, options.otlp_service_name)
    except (UsageError, TracingUnavailable) as error:
        return logs.fail(str(error), logs.USAGE)
    told_apart = {} if options.replica is None else {"engine": options.replica}
    logs.configure(options.json_output, options.logger_level, **told_apart)
    if options.json_output or options.replica is not None:
        os.environ.update(SILENCE)
    if options.parent_pid is not None:
        die_with_parent(options.parent_pid)
    if options.processors:
        os.sched_setaffinity(0, options.processors)  # before any thread begins, JAX's above all
    token = os.environ.pop(transport.TOKEN_VARIABLE, "")
    return process.run(
        options.uds_path,
        token,
        lambda progress: load(options, progress),
        drain_seconds=options.drain_seconds,
        tracing=tracing,
    )


def load(options: ServeOptions, progress: Progress) -> Loaded:
    """Find, fetch and convert the model, then load and compile it.

    Raises:
        StartupError: the model or the options are at fault.
    """
    from convert.errors import CheckpointError

    try:
        return _load(options, progress)
    except CheckpointError as error:
        raise StartupError(str(error), error.exit_code) from error
    except ValueError as error:
        raise StartupError(str(error), logs.USAGE) from error


def _load(options: ServeOptions, progress: Progress) -> Loaded:
    model = _open(options, progress)
    membership = Membership.of(options, options.group_patience)
    record = None if options.adapters_file is None else AdapterRecord(options.adapters_file)
    os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", str(options.memory_fraction))  # read when JAX meets the device
    from convert.cache import cache_root
    from jaxengine.executor.compile_cache import compile_cache_in, enable_compile_cache
    from jaxengine.executor.executable_store import forget_executables

    compile_cache = compile_cache_in(cache_root(options.cache_dir))
    enable_compile_cache(compile_cache)
    try:
        if membership and options.follows:
            return Loaded(_follow(model, options, membership, compile_cache, progress), model.directory)
        engine = _lead(model, options, membership, record, compile_cache, progress)
    except RuntimeError:  # JAX's errors are among these
        if membership is None:  # else another machine may be the cause
            forget_executables(compile_cache)  # a damaged one may be, and would stop every later start too
        raise
    return Loaded(engine, model.directory, record)


def _open(options: ServeOptions, progress: Progress) -> "OpenModel":
    from convert.source import open_model, with_rope

    progress(f"{OPENING} {options.model_id or 'the default model'}")
    model = open_model(
        options.model_id,
        options.revision,
        cache_dir=options.cache_dir,
        adapter=options.merge_adapter,
        drafter=options.speculation.model if options.speculation else None,
        language_model_only=options.language_model_only,
    )
    for name in SECRETS:
        os.environ.pop(name, None)
    if options.rope_scaling or options.rope_factor:
        model = with_rope(model, options.rope_scaling or "linear", options.rope_factor or 1.0)
    if options.model_name:
        model = dataclasses.replace(model, model_id=options.model_name)
    return model


def _lead(
    model: "OpenModel",
    options: ServeOptions,
    membership: Membership | None,
    record: AdapterRecord | None,
    compile_cache: Path,
    progress: Progress,
) -> "Engine":
    """The engine of a server, on this machine alone or on all of its group."""
    from jaxengine.engine.rehearsal import rehearse
    from jaxengine.startup.build import load_engine

    adapters, noted = named_adapters(options.lora_adapters), record.read() if record else None
    if noted is not None:
        adapters = ()
        options = dataclasses.replace(
            options, enable_lora=True, max_loras=noted.max_loras, max_lora_rank=noted.max_lora_rank
        )
    leader = _gather(membership, options, adapters, progress) if membership else None
    if leader is None:
        _require_device(progress)
    engine = load_engine(
        model,
        options,
        _counted(progress),
        adapters=adapters,
        compile_cache=compile_cache,
        leader=leader,
    )
    if noted is not None:
        noted.restore(engine)
    rehearse(engine)
    engine.constraints.start()
    return engine


def _gather(
    membership: Membership, options: ServeOptions, adapters: Sequence[NamedAdapter], progress: Progress
) -> "Leader":
    """Wait for the other machines of the group."""
    from jaxengine.group import distributed
    from jaxengine.group.leader import Leader
    from jaxengine.startup import agreement

    if not membership.key:
        place = f"{membership.address} port {membership.port}"
        logger.warning("whoever reaches %s can join this group: --group-key-file keeps others out", place)
    leader = Leader(membership, agreement.hello(membership.hosts))
    welcome = leader.gather(
        lambda: agreement.welcome(distributed.free_port(membership.address), options, adapters),
        lambda here, wanted: progress(f"{WAITING} the other machines {here}/{wanted}"),
    )
    _meet(membership, welcome["port"], progress)
    return leader


def _follow(
    model: "OpenModel", options: ServeOptions, membership: Membership, compile_cache: Path, progress: Progress
) -> "Replay":
    """What repeats the launches of the machine that leads, with its options."""
    from jaxengine.group.follower import FollowerLink
    from jaxengine.startup import agreement
    from jaxengine.startup.follow import load_replay

    leader = FollowerLink(membership)
    welcome = leader.join(agreement.hello(membership.hosts), progress)
    for line in agreement.overruled(options, agreement.options_of(welcome)):
        logger.warning(line)
    try:
        _meet(membership, welcome["port"], progress)
        return load_replay(model, welcome, leader, _counted(progress), compile_cache)
    except Exception as error:
        leader.fail(str(error))
        raise


def _meet(membership: Membership, port: int, progress: Progress) -> None:
    """From here on JAX's devices are those of all machines."""
    from jaxengine.group import distributed

    distributed.start(membership, port)
    _require_device(progress)
    distributed.compile_together()


def _counted(progress: Progress) -> Callable[[str, int, int], None]:
    return lambda what, done, total: progress(progress_line(what, done, total))


def progress_line(what: str, done: int, total: int) -> str:
    """`compiling 3/17`, or of bytes `loading 120/269 MB`, which is full only once all are there."""
    if what != LOADING:
        return f"{what} {done}/{total}"
    return f"{what} {done // MB if done < total else -(-total // MB)}/{-(-total // MB)} MB"


def _require_device(progress: Progress) -> None:
    progress("starting the device")
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX 0.10.2 asserts where no platform of those named is there
        platforms = os.environ.get("JAX_PLATFORMS", "")
        raise StartupError(f"JAX finds no device (JAX_PLATFORMS={platforms!r})", os.EX_UNAVAILABLE) from error

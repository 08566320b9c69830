"""TGI's benchmark: batches of fixed sizes through an engine, over its socket, without HTTP and without text."""

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import grpc

from gateway.benchmark import engine_batch, facts
from gateway.benchmark.distribution import Distribution
from gateway.benchmark.engine_batch import Batch, BatchFailed, Generates
from gateway.benchmark.engine_socket import NoEngine, find
from gateway.benchmark.live import Live
from gateway.benchmark.one_line import one_line
from gateway.benchmark.options import BenchmarkOptions
from gateway.benchmark.parameters import engine_parameters
from gateway.benchmark.report import INTERRUPTED, Level, Load, Report
from gateway.benchmark.sampling import Sampling
from gateway.engine.client import EngineClient
from jaxengine.options.option import UsageError
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc import transport
from jaxengine.rpc.engine_pb2_grpc import EngineStub

CONNECT_SECONDS = 10.0
# Of the vocabulary the middle: special tokens are at its ends.
LOW, HIGH = 1 / 8, 7 / 8


async def measure(options: BenchmarkOptions, environ: Mapping[str, str], live: Live) -> Report:
    """Raises NoEngine or UsageError. An engine that is lost on the way ends the report, with `failure` set."""
    socket, token = find(options.master_shard_uds_path, environ)
    async with _connected(socket, token) as (client, description):
        _check_lengths(options, description)
        report = Report("engine", engine_parameters(options, description.model_id), _facts(socket, description))
        before = client.stats.compiles_after_warmup
        try:
            for size in options.batch_sizes:
                await _level(client, options, description, size, live, report)
        except BatchFailed as error:
            report.failure = one_line(str(error))
        except asyncio.CancelledError:  # what was measured is reported
            report.failure = INTERRUPTED
        compiles = client.stats.compiles_after_warmup
        report.facts["compiles during the measurement"] = compiles - before if compiles >= before else compiles
        report.warnings += _warnings(report, description)
    return report


@contextlib.asynccontextmanager
async def _connected(socket: Path, token: str) -> AsyncIterator[tuple[EngineClient, pb.Description]]:
    """Raises NoEngine."""
    description = await _describe(socket, token)
    client = EngineClient(socket, token)
    running = asyncio.create_task(client.run())
    try:
        await _ready(client, f"the engine at {socket} takes no requests: {description.progress or 'it is starting'}")
        yield client, description
    finally:
        running.cancel()
        await asyncio.wait([running])


async def _ready(client: EngineClient, otherwise: str) -> None:
    """Raises NoEngine."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            while not client.ready:
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise NoEngine(otherwise) from None


async def _describe(socket: Path, token: str) -> pb.Description:
    try:
        async with grpc.aio.insecure_channel(transport.address(socket)) as channel:
            credentials = transport.credentials(token)
            return await EngineStub(channel).Describe(
                pb.DescribeRequest(), metadata=credentials, timeout=CONNECT_SECONDS
            )
    except grpc.aio.AioRpcError as error:
        refused = error.code() == grpc.StatusCode.UNAUTHENTICATED
        why = "refuses the token that lies beside it" if refused else f"does not answer ({error.code().name})"
        raise NoEngine(f"the engine at {socket} {why}") from None


def _check_lengths(options: BenchmarkOptions, description: pb.Description) -> None:
    if description.embeds_only:
        raise UsageError(f"{description.model_id} generates no text")
    total = options.sequence_length + options.decode_length
    if total > description.max_total_tokens:
        raise UsageError(
            f"--sequence-length {options.sequence_length} and --decode-length {options.decode_length} are {total} "
            f"tokens together; the engine takes {description.max_total_tokens}"
        )
    if (listed := options.top_n_tokens or 0) > description.max_top_logprobs:
        raise UsageError(f"--top-n-tokens {listed} must be at most {description.max_top_logprobs} with this engine")


async def _level(
    client: Generates,
    options: BenchmarkOptions,
    description: pb.Description,
    size: int,
    live: Live,
    report: Report,
) -> None:
    """Raises BatchFailed or CancelledError; the batches until then are in the report all the same."""
    load, chance = Load("batch size", size), random.Random(f"{options.seed} {size}")
    batches: list[Batch] = []
    try:
        for number in range(options.warmups + options.runs):
            batch = await engine_batch.run(client, [_request(options, description, chance) for _ in range(size)])
            if number >= options.warmups:
                batches.append(batch)
                live.show(load, number - options.warmups + 1, batch.measures)
    finally:
        if batches:
            report.levels.append(level(load, batches))


def level(load: Load, batches: list[Batch]) -> Level:
    runs = [batch.measures for batch in batches]
    names = dict.fromkeys(name for run in runs for name in run)
    spread = {name: Distribution.of(run[name] for run in runs if name in run) for name in names}
    cached = sum(batch.cached_tokens for batch in batches)
    return Level(load, runs, {name: each for name, each in spread.items() if each}, {"cached_tokens": float(cached)})


def _request(options: BenchmarkOptions, description: pb.Description, chance: random.Random) -> pb.Generate:
    """Random ids, with a salt that no other request has: no page of the prompt is in the prefix cache."""
    low, high = int(description.vocab_size * LOW), max(1, int(description.vocab_size * HIGH))
    prompt = [chance.randrange(low, high) for _ in range(options.sequence_length)]
    sampling = Sampling(options).engine()
    sampling.seed = chance.getrandbits(64)
    return pb.Generate(
        prompt=prompt,
        max_new_tokens=options.decode_length,
        ignore_eos=True,
        sampling=sampling,
        cache_salt=secrets.token_bytes(16),
    )


def _facts(socket: Path, description: pb.Description) -> dict[str, object]:
    engine = {
        "socket": str(socket),
        "model": description.model_id,
        "revision": description.revision,
        "device": f"{description.device_count} x {description.device_kind}",
        "dtype": description.dtype,
        "cache dtype": description.cache_dtype,
        "rows of a step": description.max_batch_size,
        "tokens of a step": description.max_batch_prefill_tokens,
    }
    return {"client": facts.machine(), "engine": {name: value for name, value in engine.items() if value != ""}}


def _warnings(report: Report, description: pb.Description) -> list[str]:
    found = []
    largest = max((each.load.value for each in report.levels), default=0)
    if largest > description.max_batch_size:
        found.append(
            f"batches of more than {description.max_batch_size} do not fit into a step of this engine: their rows wait "
            "for each other, and their prefill holds decode steps (the server's --max-batch-size)"
        )
    if cached := sum(each.totals["cached_tokens"] for each in report.levels):
        found.append(f"{cached:g} tokens of prompts were in the prefix cache: the prefill was not all computed")
    return found

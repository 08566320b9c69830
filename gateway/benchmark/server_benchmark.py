"""Loads on a server over HTTP, one after another, each with runs to warm up and runs that count."""

import asyncio
import itertools
import resource
from collections.abc import Iterator
from time import perf_counter

from gateway.benchmark import facts
from gateway.benchmark.ahead import Ahead
from gateway.benchmark.answer import Answer
from gateway.benchmark.dialect import Dialect
from gateway.benchmark.http_client import HttpClient
from gateway.benchmark.lag import Lag
from gateway.benchmark.live import Live
from gateway.benchmark.load import closed_loop, open_loop
from gateway.benchmark.options import BenchmarkOptions
from gateway.benchmark.parameters import server_parameters
from gateway.benchmark.probe import probe
from gateway.benchmark.prompt import Prompt
from gateway.benchmark.prompts import prompts
from gateway.benchmark.report import INTERRUPTED, Level, Load, Report
from gateway.benchmark.schedule import scheduled
from gateway.benchmark.sender import TIMEOUT, Sender
from gateway.benchmark.server_warnings import warnings
from gateway.benchmark.summary import Run, level, rates
from gateway.benchmark.sweep import knee, sweep
from gateway.benchmark.tokenizer import tokenizer

REQUESTS_EACH, REQUESTS_AT_A_RATE = 4, 100  # of a run, unless --requests or --duration says otherwise
AHEAD = 2  # prompts for each user that are made before they are asked for, where a run has no number of them
LAST_SECONDS = 2.0
PATIENCE = 16  # connections in a row that may fail, or twice as many as there are users


class Gone(Exception):
    """The server has gone away during a run."""


async def measure(options: BenchmarkOptions, live: Live) -> Report:
    """Raises NoServer or UsageError. A server that goes away on the way ends the report, with `failure` set."""
    assert options.url is not None
    _allow_connections()
    asked = prompts(options, tokenizer(options))
    first = next(asked)
    client = HttpClient(options.url, options.api_key)
    try:
        dialect = await probe(client, options, chats=first.is_chat)
        return await ServerBenchmark(options, client, dialect, asked, live).run()
    finally:
        client.close()


class ServerBenchmark:
    """One measurement of one server."""

    def __init__(
        self, options: BenchmarkOptions, client: HttpClient, dialect: Dialect, asked: Iterator[Prompt], live: Live
    ) -> None:
        self._options, self._client, self._dialect, self._live = options, client, dialect, live
        self._sender = Sender(client, dialect, timeout=options.timeout or TIMEOUT)
        self._prompts, self._lag = asked, Lag()
        self._ahead: Ahead | None = None
        self._answers: list[Answer] = []  # that count
        self._number = 0  # of the run, whose times between requests are its own

    async def run(self) -> Report:
        options = self._options
        report = Report("server", server_parameters(options, self._dialect.path), {"client": facts.machine()})
        report.facts["server"] = await facts.server(self._client)
        before = await facts.counters(self._client)
        try:
            async with self._lag.watched():
                await self._measure(report)
        finally:
            if self._ahead is not None:
                self._ahead.close()
        after = await self._last_counters(report)
        report.facts["metrics"] = {"before": before, "after": after, "grown": facts.grown(before, after)}
        if options.slo is not None:
            report.slo, report.slo_share = str(options.slo), options.needed_share
            report.knee = knee(report.levels, report.slo_share)
        report.warnings += warnings(options, report, self._answers, self._lag.seconds)
        return report

    async def _last_counters(self, report: Report) -> dict[str, float]:
        """None, if they do not come soon after what ended the measurement early: its user waits for the report."""
        try:
            async with asyncio.timeout(LAST_SECONDS if report.failure else None):
                return await facts.counters(self._client)
        except TimeoutError:
            return {}

    async def _measure(self, report: Report) -> None:
        try:
            if self._options.sweep:
                needed = None if self._options.slo is None else self._options.needed_share
                await sweep(lambda users: self._level(Load("concurrency", users), report), needed)
            else:
                for load in self._loads():
                    await self._level(load, report)
        except Gone:
            report.failure = f"{self._client.url} went away: {self._sender.gone}"
        except asyncio.CancelledError:  # what was measured is reported
            report.failure = INTERRUPTED
        if self._options.sweep:
            report.levels.sort(key=lambda level: level.load.value)

    def _loads(self) -> list[Load]:
        if self._options.rate:
            return [Load("rate", rate) for rate in self._options.rate]
        return [Load("concurrency", size) for size in self._options.batch_sizes]

    async def _level(self, load: Load, report: Report) -> Level:
        """Raises Gone or CancelledError; what was measured until then is in the report all the same."""
        runs: list[Run] = []
        self._sender.patience = max(PATIENCE, 2 * int(load.value) if load.kind == "concurrency" else 0)
        try:
            await self._runs(load, runs)
        finally:
            found = level(load, runs, self._options.slo)
            if runs:
                report.levels.append(found)
            self._answers += [answer for run in runs for answer in run.answers]
        return found

    async def _runs(self, load: Load, runs: list[Run]) -> None:
        """Append to `runs` those that count. Raises Gone."""
        options = self._options
        for number in range(options.warmups + options.runs):
            run = await (self._open(load) if load.kind == "rate" else self._closed(load))
            if number >= options.warmups:
                runs.append(run)
                self._live.show(load, number - options.warmups + 1, _shown(run, options))
            if self._sender.given_up:
                raise Gone

    async def _open(self, load: Load) -> Run:
        options = self._options
        self._number += 1
        requests, seed = options.requests or REQUESTS_AT_A_RATE, (options.seed or 0) + self._number
        due = scheduled(load.value, options.burstiness or 1.0, seed, requests, options.duration)
        made = await self._made(len(due))
        began = perf_counter()
        answers = await open_loop(self._sender, made, due)
        return Run(answers, perf_counter() - began)

    async def _closed(self, load: Load) -> Run:
        options, users = self._options, int(load.value)
        count = None if options.duration else options.requests or REQUESTS_EACH * users
        made = await (self._kept_ahead(AHEAD * users) if count is None else self._made(count))
        began = perf_counter()
        answers = await closed_loop(self._sender, made, users, count, options.duration)
        return Run(answers, perf_counter() - began)

    async def _made(self, count: int) -> Iterator[Prompt]:
        """So many prompts, made before a run's clock starts, in a thread: the loop's lag is watched."""
        return iter(await asyncio.to_thread(lambda: list(itertools.islice(self._prompts, count))))

    async def _kept_ahead(self, count: int) -> Iterator[Prompt]:
        """Prompts without end, of which so many are made before the run's clock starts, and are kept made."""
        if self._ahead is None:
            self._ahead = Ahead(self._prompts)
        await asyncio.to_thread(self._ahead.fill, count)
        return self._ahead


def _shown(run: Run, options: BenchmarkOptions) -> dict[str, float]:
    found = level(Load("", 0), [run], options.slo).spread
    return rates(run, options.slo) | {name: each.p50 for name, each in found.items() if name != "sent_late_ms"}


def _allow_connections() -> None:
    """As many files as this process may have open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

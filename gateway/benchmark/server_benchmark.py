"""Loads on a server over HTTP, one after another, each with runs to warm up and runs that count."""

import asyncio
import resource
from collections.abc import Iterator
from time import perf_counter

from gateway.benchmark import facts
from gateway.benchmark.answer import Answer
from gateway.benchmark.dialect import Dialect
from gateway.benchmark.http_client import HttpClient
from gateway.benchmark.lag import Lag
from gateway.benchmark.live import Live
from gateway.benchmark.load import closed_loop, open_loop
from gateway.benchmark.options import BenchmarkOptions
from gateway.benchmark.parameters import server_parameters
from gateway.benchmark.probe import NoServer, probe
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
SLO_SHARE = 0.95
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
        self._answers: list[Answer] = []  # that count
        self._number = 0  # of the run, whose times between requests are its own

    async def run(self) -> Report:
        options = self._options
        report = Report("server", server_parameters(options, self._dialect.path), {"client": facts.machine()})
        report.facts["server"] = await facts.server(self._client)
        before = await facts.counters(self._client)
        async with self._lag.watched():
            await self._measure(report)
        after = await facts.counters(self._client)
        report.facts["metrics"] = {"before": before, "after": after, "grown": facts.grown(before, after)}
        if options.slo is not None:
            report.slo, report.slo_share = str(options.slo), options.slo_share or SLO_SHARE
            report.knee = knee(report.levels, report.slo_share)
        report.warnings += warnings(options, report, self._answers, self._lag.seconds)
        return report

    async def _measure(self, report: Report) -> None:
        async def measured(load: Load) -> Level:
            found = await self._level(load, report)
            report.levels.append(found)
            if report.failure:
                raise Gone
            return found

        try:
            if self._options.sweep:
                needed = None if self._options.slo is None else self._options.slo_share or SLO_SHARE
                await sweep(lambda users: measured(Load("concurrency", users)), needed)
                report.levels.sort(key=lambda level: level.load.value)
            else:
                for load in self._loads():
                    await measured(load)
        except Gone:
            pass
        except asyncio.CancelledError:  # what was measured is reported
            report.failure = INTERRUPTED

    def _loads(self) -> list[Load]:
        if self._options.rate:
            return [Load("rate", rate) for rate in self._options.rate]
        return [Load("concurrency", size) for size in self._options.batch_sizes]

    async def _level(self, load: Load, report: Report) -> Level:
        options, sender, runs = self._options, self._sender, []
        sender.patience = max(PATIENCE, 2 * int(load.value) if load.kind == "concurrency" else 0)
        for number in range(options.warmups + options.runs):
            run = await self._run(load)
            if number >= options.warmups or sender.given_up:
                runs.append(run)
                self._live.show(load, number - options.warmups + 1, _shown(run, options))
            if sender.given_up:
                report.failure = f"{self._client.url} went away: {runs[-1].answers[-1].detail}"
                break
        self._answers += [answer for run in runs for answer in run.answers]
        return level(load, runs, options.slo)

    async def _run(self, load: Load) -> Run:
        options, sender = self._options, self._sender
        self._number += 1
        began = perf_counter()
        if load.kind == "rate":
            requests = options.requests or REQUESTS_AT_A_RATE
            seed = (options.seed or 0) + self._number
            due = scheduled(load.value, options.burstiness or 1.0, seed, requests, options.duration)
            answers = await open_loop(sender, self._prompts, due)
        else:
            users = int(load.value)
            count = None if options.duration else options.requests or REQUESTS_EACH * users
            answers = await closed_loop(sender, self._prompts, users, count, options.duration)
        return Run(answers, perf_counter() - began)


def _shown(run: Run, options: BenchmarkOptions) -> dict[str, float]:
    found = level(Load("", 0), [run], options.slo).spread
    return rates(run, options.slo) | {name: each.p50 for name, each in found.items() if name != "sent_late_ms"}


def _allow_connections() -> None:
    """As many files as this process may have open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


__all__ = ["NoServer", "ServerBenchmark", "measure"]

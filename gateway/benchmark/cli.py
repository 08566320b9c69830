"""`text-generation-benchmark`: from options to a report.

The exit code is 0; 1 if the result is below --fail-below; 2 for a wrong option, for an engine or a server that is not
there, for one that goes away during the measurement, of which what was measured is reported all the same, and for a
server none of whose answers is complete.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence

import uvloop

from gateway.benchmark import comparison, comparison_table, engine_benchmark, json_report, outputs, server_benchmark
from gateway.benchmark.command_line import parse
from gateway.benchmark.engine_socket import NoEngine
from gateway.benchmark.html_report import comparison_page, page
from gateway.benchmark.live import live
from gateway.benchmark.markdown import markdown, table
from gateway.benchmark.one_line import one_line
from gateway.benchmark.options import BenchmarkOptions
from gateway.benchmark.probe import NoServer
from gateway.benchmark.report import INTERRUPTED, Report
from jaxengine.options.option import UsageError
from jaxengine.telemetry import standard_streams
from jaxengine.telemetry.logs import USAGE, fail

BELOW = 1
INTERRUPT = 130  # as of a shell whose command ended with SIGINT


def main() -> None:
    standard_streams.hold()
    sys.exit(run(sys.argv[1:], os.environ))


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit code. What went wrong is one line on stderr."""
    try:
        options = parse(argv, environ)
        return _compare(options) if options.compare else _measure(options, environ)
    except (UsageError, NoServer, NoEngine) as error:
        return fail(str(error), USAGE)
    except KeyboardInterrupt:
        return fail(INTERRUPTED, INTERRUPT)
    except BrokenPipeError:  # whoever read our output has gone
        return os.EX_IOERR


def _measure(options: BenchmarkOptions, environ: Mapping[str, str]) -> int:
    outputs.check(options)
    with live(options.runs) as shown, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.url is None:
            report = runner.run(engine_benchmark.measure(options, environ, shown))
        else:
            report = runner.run(server_benchmark.measure(options, shown))
    texts = {"md": markdown, "json": json_report.written, "html": page}
    outputs.write(options, {name: texts[name](report) for name in outputs.formats(options)})
    if report.failure:
        return fail(report.failure, INTERRUPT if report.failure == INTERRUPTED else USAGE)
    if said := _nothing_works(report):
        return fail(said, USAGE)
    best = _best(report)
    if options.fail_below is not None and best < options.fail_below:
        return fail(f"{best:.6g} is below --fail-below {options.fail_below:g}", BELOW)
    return 0


def _nothing_works(report: Report) -> str:
    """What the first request said, if none of any load was answered completely."""
    if any(level.totals.get("complete") != 0 for level in report.levels):
        return ""
    said = next((f"{kind}, {text}" for level in report.levels for kind, text in level.examples.items()), "")
    return f"no answer is complete; the first: {said}" if said else ""


def _best(report: Report) -> float:
    """Of all levels the highest: goodput with an SLO, else throughput."""
    name = "good_requests_per_second" if report.slo else "output_tokens_per_second"
    of_engine = [level.spread.get("decode_tokens_per_second") for level in report.levels]
    rates = [each.mean for each in of_engine if each] or [level.totals.get(name, 0.0) for level in report.levels]
    return max(rates, default=0.0)


def _compare(options: BenchmarkOptions) -> int:
    outputs.check(options)
    a, b = (json_report.read(path) for path in options.compare)
    changes = comparison.compare(a, b)
    rows, names = comparison_table.rows(changes), [str(path) for path in options.compare]
    texts = {
        "md": lambda: f"A: {names[0]}\nB: {names[1]}\n\n{table(comparison_table.COLUMNS, rows)}\n",
        "json": lambda: comparison_table.written(names, changes),
        "html": lambda: comparison_page(names, changes),
    }
    outputs.write(options, {name: texts[name]() for name in outputs.formats(options)})
    failures = comparison.failures(a, b)
    for each in (*comparison.differences(a, b), *failures):
        print(f"warning: {one_line(each)}", file=sys.stderr)
    return 0 if options.fail_below is None else _judged(changes, failures, options.fail_below)


def _judged(changes: Sequence[comparison.Change], failures: Sequence[str], least: float) -> int:
    """The exit code of a comparison with --fail-below `least`."""
    for change in comparison.undecided(changes, least):
        print(f"warning: {_named(change)} may be below {least:g}: more runs would tell", file=sys.stderr)
    if lower := comparison.slower(changes, least):
        return fail(f"below --fail-below {least:g}: {', '.join(map(_named, lower))}", BELOW)
    if failures:
        return fail(f"--fail-below {least:g} cannot be said to be kept: {one_line(failures[0])}", BELOW)
    return 0


def _named(change: comparison.Change) -> str:
    return f"{change.load.kind} {change.load} {change.ratio:.3f} ({change.low:.3f} … {change.high:.3f})"


if __name__ == "__main__":
    main()

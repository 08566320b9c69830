"""The report as Markdown. Of an engine these are TGI's tables; a server has one of rates and one of times."""

from collections.abc import Iterator, Sequence

from gateway.benchmark.distribution import Distribution
from gateway.benchmark.fact_lines import fact_lines
from gateway.benchmark.names import NAMES, number
from gateway.benchmark.one_line import one_line
from gateway.benchmark.report import Level, Report

ENGINE_TIMES = {"Prefill": "prefill_ms", "Decode (token)": "decode_token_ms", "Decode (total)": "decode_total_ms"}
ENGINE_RATES = {"Prefill": "prefill_tokens_per_second", "Decode": "decode_tokens_per_second"}
SERVER_TIMES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "sent_late_ms")
SERVER_RATES = (
    *("requests_per_second", "good_requests_per_second", "output_tokens_per_second", "total_tokens_per_second"),
)
Rows = Sequence[Sequence[str]]


def markdown(report: Report) -> str:
    parts = [f"**{report.verdict}.**"] if report.verdict else []
    parts += [table(*each) for each in tables(report)]
    parts += [f"> Warning: {each}." for each in report.warnings]
    parts += [f"> The measurement ended early: {report.failure}."] if report.failure else []
    parts.append("\n".join(f"- {name}: {value}" for name, value in fact_lines(report.facts)))
    return "\n\n".join(parts) + "\n"


def tables(report: Report) -> Iterator[tuple[Sequence[str], Rows]]:
    """The columns' names and the rows of each table."""
    yield ("Parameter", "Value"), list(report.parameters.items())
    if report.kind == "engine":
        yield from _of_engine(report.levels)
    elif report.levels:
        yield from _of_server(report.levels)


def _of_engine(levels: Sequence[Level]) -> Iterator[tuple[Sequence[str], Rows]]:
    times = [
        [step, str(level.load), *_spread(level.spread.get(name), " ms")]
        for step, name in ENGINE_TIMES.items()
        for level in levels
    ]
    yield ("Step", "Batch Size", "Average", "Lowest", "Highest", "p50", "p90", "p99"), times
    rates = [
        [step, str(level.load), *_spread(level.spread.get(name), " tokens/secs")[:3]]
        for step, name in ENGINE_RATES.items()
        for level in levels
    ]
    yield ("Step", "Batch Size", "Average", "Lowest", "Highest"), rates


def _spread(found: Distribution | None, unit: str) -> list[str]:
    """As TGI writes it; hyphens for an answer of one token, which has no decode."""
    if found is None:
        return ["-"] * 6
    shown = (found.mean, found.lowest, found.highest, found.p50, found.p90, found.p99)
    return [f"{each:.2f}{unit}" for each in shown]


def _of_server(levels: Sequence[Level]) -> Iterator[tuple[Sequence[str], Rows]]:
    kind = levels[0].load.kind.capitalize()
    names = [name for name in SERVER_RATES if any(name in level.totals for level in levels)]
    counts = ("complete", "rejected", "failed", "prompt tokens", "output tokens", "seconds")
    rows = [[str(level.load), *_counts(level), *(number(level.totals[name]) for name in names)] for level in levels]
    good = any("good_share" in level.totals for level in levels)
    if good:
        rows = [[*row, f"{level.totals['good_share']:.1%}"] for row, level in zip(rows, levels, strict=True)]
    yield (kind, *counts, *(NAMES[name] for name in names), *(["good"] if good else [])), rows
    times = [
        [str(level.load), NAMES[name], *map(number, (each.mean, each.deviation, each.p50, each.p90, each.p99))]
        for level in levels
        for name in SERVER_TIMES
        if (each := level.spread.get(name)) is not None
    ]
    yield (kind, "Time", "mean", "deviation", "p50", "p90", "p99"), times


def _counts(level: Level) -> list[str]:
    failed = sum(level.failures.values()) - level.totals["rejected"]
    counts = (level.totals["complete"], level.totals["rejected"], failed)
    tokens = (level.totals["prompt_tokens"], level.totals["output_tokens"])
    return [*(f"{each:,.0f}" for each in (*counts, *tokens)), number(level.totals["seconds"])]


def table(columns: Sequence[str], rows: Rows) -> str:
    """Padded, so that it reads in a terminal too."""
    lines = [[one_line(cell).replace("|", r"\|") for cell in row] for row in (columns, *rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    shown = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([shown[0], rule, *shown[1:]])

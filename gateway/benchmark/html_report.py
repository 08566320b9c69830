"""The report as one HTML file: tables, and plots over the loads. It needs nothing from elsewhere and has no script."""

from collections.abc import Iterator, Sequence
from html import escape

from gateway.benchmark import comparison_table
from gateway.benchmark.chart import Lines, chart
from gateway.benchmark.comparison import Change
from gateway.benchmark.fact_lines import fact_lines
from gateway.benchmark.markdown import Rows, tables
from gateway.benchmark.names import NAMES, number
from gateway.benchmark.report import Report
from gateway.benchmark.stylesheet import STYLE

# Of each plot what it shows: of one name the percentiles, of several their values.
ENGINE_PLOTS = (
    ("Tokens a second", ("decode_tokens_per_second", "prefill_tokens_per_second")),
    ("Time of a token, ms", ("decode_token_ms",)),
    ("Prefill, ms", ("prefill_ms",)),
)
SERVER_PLOTS = (
    ("Output tokens a second", ("output_tokens_per_second",)),
    ("Requests a second", ("requests_per_second", "good_requests_per_second")),
    ("Time to the first token (TTFT), ms", ("ttft_ms",)),
    ("Time between chunks (ITL), ms", ("itl_ms",)),
    ("Time per output token (TPOT), ms", ("tpot_ms",)),
    ("Time of a whole answer (E2E), ms", ("e2e_ms",)),
)
# Of the tables, of which a report without a level has the first alone.
CAPTIONS = {"engine": ("What was asked", "Times", "Throughput"), "server": ("What was asked", "Rates", "Times")}
PERCENTILES = ("p50", "p90", "p99")


def page(report: Report) -> str:
    of = report.facts.get("server", {}).get("url") or report.facts.get("engine", {}).get("model", "")
    parts = [f"<h1>Benchmark of {escape(str(of))}</h1>"]
    parts += [f'<p class="verdict">{escape(report.verdict)}.</p>'] if report.verdict else []
    parts += [f'<p class="warning">Warning: {escape(each)}.</p>' for each in report.warnings]
    parts += (
        [f'<p class="warning">The measurement ended early: {escape(report.failure)}.</p>'] if report.failure else []
    )
    parts += ['<div class="plots">', *_plots(report), "</div>"]
    parts += [_table(caption, *each) for caption, each in zip(CAPTIONS[report.kind], tables(report), strict=False)]
    parts.append(_table("On what", ("Fact", "Value"), list(fact_lines(report.facts))))
    return _document(f"Benchmark of {of}", parts)


def comparison_page(names: Sequence[str], changes: Sequence[Change]) -> str:
    heads = [f"<h1>Two benchmarks</h1><p>A: {escape(names[0])}<br>B: {escape(names[1])}</p>"]
    rows = comparison_table.rows(changes)
    return _document("Two benchmarks", [*heads, _table("B as a multiple of A", comparison_table.COLUMNS, rows)])


def _plots(report: Report) -> Iterator[str]:
    if not report.levels:
        return
    loads, across = [level.load.value for level in report.levels], report.levels[0].load.kind
    for place, (title, names) in enumerate(ENGINE_PLOTS if report.kind == "engine" else SERVER_PLOTS):
        lines = _percentiles(report, names[0]) if len(names) == 1 else {}
        lines = lines or _values(report, names)
        if not lines:
            continue
        rows = [
            [f"{load:g}", *("-" if each is None else number(each) for each in values)]
            for load, *values in zip(loads, *lines.values(), strict=True)
        ]
        plot = chart(f"plot{place}", title, across, loads, lines)
        below = _table(title, (across.capitalize(), *lines), rows)
        details = f"<details open><summary>As a table</summary>{below}</details>"
        yield f"<figure><figcaption>{escape(title)}</figcaption>{plot}{details}</figure>"


def _percentiles(report: Report, name: str) -> Lines:
    found = [level.spread.get(name) for level in report.levels]
    if not any(found):
        return {}
    return {share: [getattr(each, share) if each else None for each in found] for share in PERCENTILES}


def _values(report: Report, names: Sequence[str]) -> Lines:
    lines = {}
    for name in names:
        means = [level.spread[name].mean if name in level.spread else level.totals.get(name) for level in report.levels]
        if any(each is not None for each in means):
            lines[NAMES[name]] = means
    return lines


def _table(caption: str, columns: Sequence[str], rows: Rows) -> str:
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(each)}</td>" for each in row[1:])}</tr>'
        for row in rows
    )
    kind = "texts" if columns[-1] == "Value" else "numbers"
    return (
        f'<div class="scroll {kind}" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _document(title: str, parts: Sequence[str]) -> str:
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )

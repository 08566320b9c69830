"""What is written: TGI's tables, and a page that stands alone and can be read by everybody."""

import io
import json
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from gateway.benchmark import json_report, plain_json
from gateway.benchmark.chart import chart, ticks
from gateway.benchmark.comparison import compare
from gateway.benchmark.distribution import Distribution
from gateway.benchmark.engine_batch import Batch
from gateway.benchmark.engine_benchmark import level
from gateway.benchmark.facts import grown, read_counters
from gateway.benchmark.html_report import comparison_page, page
from gateway.benchmark.live import Lines, live
from gateway.benchmark.markdown import markdown
from gateway.benchmark.report import Level, Load, Report

EVIL = '<script>alert("x")</script>'


def engine_report() -> Report:
    levels = [level(Load("batch size", size), [Batch(size, 0.01, 0.07, 7, 7 * size, 0)] * 2) for size in (1, 4)]
    return Report("engine", {"Model": EVIL, "Sequence Length": "10"}, {"engine": {"model": EVIL}}, levels)


def server_report() -> Report:
    levels = []
    for users in (1, 2, 4, 6):
        times = Distribution.of([10.0 * users, 20.0 * users])
        assert times is not None
        totals = {
            "requests": 8.0,
            "complete": 6.0,
            "rejected": 1.0,
            "seconds": 2.0,
            "prompt_tokens": 60.0,
            "output_tokens": 48.0,
            "requests_per_second": 3.0 * users,
            "output_tokens_per_second": 24.0 * users,
            "total_tokens_per_second": 54.0,
            "good_requests_per_second": 2.0,
            "good_share": 0.75,
        }
        spread = {"ttft_ms": times, "itl_ms": times, "e2e_ms": times}
        runs = [{"output_tokens_per_second": 24.0 * users}]
        levels.append(Level(Load("concurrency", users), runs, spread, totals, {"rejected": 1, "broken": 1}))
    facts = {"server": {"url": "http://h:1", "info": {"a": None, "b": EVIL}}}
    return Report("server", {"Url": "http://h:1"}, facts, levels, "ttft=15ms", 0.95, 1.0, [EVIL], "it died")


def test_the_tables_of_an_engine_are_tgis() -> None:
    lines = [re.sub(" +", " ", line) for line in markdown(engine_report()).splitlines()]
    assert lines[0] == "| Parameter | Value |"
    assert "| Step | Batch Size | Average | Lowest | Highest | p50 | p90 | p99 |" in lines
    assert "| Prefill | 4 | 10.00 ms | 10.00 ms | 10.00 ms | 10.00 ms | 10.00 ms | 10.00 ms |" in lines
    assert "| Decode (token) | 1 | 10.00 ms | 10.00 ms | 10.00 ms | 10.00 ms | 10.00 ms | 10.00 ms |" in lines
    assert "| Decode (total) | 1 | 70.00 ms | 70.00 ms | 70.00 ms | 70.00 ms | 70.00 ms | 70.00 ms |" in lines
    assert "| Step | Batch Size | Average | Lowest | Highest |" in lines
    assert "| Decode | 4 | 400.00 tokens/secs | 400.00 tokens/secs | 400.00 tokens/secs |" in lines


def test_an_answer_of_one_token_leaves_the_decode_empty() -> None:
    report = Report("engine", {}, {}, [level(Load("batch size", 1), [Batch(1, 0.01, 0.0, 0, 0, 0)])])
    assert re.search(r"\| Decode \(token\) +\| 1 +\| - +\| - ", markdown(report))


def test_the_tables_of_a_server_tell_failures_and_the_knee() -> None:
    text = re.sub(" +", " ", markdown(server_report()))
    assert text.startswith("**Serves 1 user within the SLO (ttft=15ms, 95% of answers).**")
    assert "| 6 | 6 | 1 | 1 | 60 | 48 | 2 | 18 | 2 | 144 | 54 | 75.0% |" in text
    assert "| 4 | TTFT, ms | 60 | 20 | 60 | 76 | 79.6 |" in text
    assert f"> Warning: {EVIL}." in text and "> The measurement ended early: it died." in text


@pytest.mark.parametrize("report", [engine_report(), server_report()], ids=["engine", "server"])
def test_a_page_stands_alone_and_is_well_formed(report: Report) -> None:
    text = page(report)
    assert EVIL not in text and "<script" not in text.lower()
    assert not re.search(r"(src|href|@import|url\()", text), "nothing is fetched"
    assert "prefers-color-scheme: dark" in text
    body = text[text.index("<main>") : text.index("</main>") + len("</main>")].replace("<br>", "<br/>")
    tree = ElementTree.fromstring(body.replace(" open>", ">"))
    figures = tree.findall(".//figure")
    assert len(figures) >= 3
    for figure in figures:
        assert figure.find("./svg/title") is not None and figure.find("./svg/desc") is not None
        assert figure.find(".//table/caption") is not None, "what a plot shows is below it as a table"
        points = figure.findall("./svg/*[@class='mark s0']")
        assert len(points) == len(figure.findall(".//tbody/tr"))
    assert all(table.findall(".//th[@scope='col']") for table in tree.iter("table"))
    identifiers = [each.get("id") for each in tree.iter() if each.get("id")]
    assert len(identifiers) == len(set(identifiers))


def test_a_page_of_nothing_measured_is_whole() -> None:
    assert "it died" in page(Report("server", {}, {}, failure="it died")) and page(Report("engine", {}, {}))
    assert markdown(Report("server", {}, {}, failure="it died"))


def test_a_comparison_has_a_page() -> None:
    text = comparison_page(["a.json", EVIL], compare(server_report(), server_report()))
    assert "B as a multiple of A" in text and EVIL not in text


def test_what_a_server_says_stays_in_its_line_and_is_short() -> None:
    report = server_report()
    report.facts["server"]["info"] = {"e\x1b[2J\nvil": "\x1b[31mred\nnew | line" + 9999 * "A", "list": ["A" * 9999]}
    report.parameters["Model"] = "a|b\nc"
    for text in (markdown(report), page(report)):
        assert "\x1b" not in text and "A" * 300 not in text
    assert "\nnew" not in markdown(report) and "\nvil" not in markdown(report)
    assert r"| a\|b c " in markdown(report)


def test_points_of_a_plot_are_where_their_numbers_are() -> None:
    tree = ElementTree.fromstring(chart("p", "T", "users", [1, 2, 4], {"x": [0.0, 5.0, 10.0]}))
    points = [(float(each.get("cx", "")), float(each.get("cy", ""))) for each in tree.iter("circle")]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1), "loads that double are as far apart"
    assert y0 > y1 > y2 and y0 - y1 == pytest.approx(y1 - y2)


def test_a_plot_leaves_out_what_was_not_measured() -> None:
    tree = ElementTree.fromstring(chart("p", "T", "users", [1, 2], {"x": [None, 5.0]}))
    assert len(list(tree.iter("circle"))) == 1


@pytest.mark.parametrize(("highest", "last"), [(0.0, 1.0), (0.07, 0.08), (1.0, 1.0), (9.0, 10.0), (123.0, 150.0)])
def test_ticks_are_round_and_reach_the_highest(highest: float, last: float) -> None:
    found = ticks(highest)
    assert found[0] == 0 and found[-1] == pytest.approx(last) and 2 <= len(found) <= 7


def test_json_is_json_and_comes_back() -> None:
    fields = json.loads(json_report.written(server_report()))
    assert fields["knee"] == 1.0 and fields["levels"][3]["failures"] == {"rejected": 1, "broken": 1}


def test_a_number_that_json_lacks_is_never_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_report.written(Report("server", {}, {"x": math.nan}))


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 50 + "]" * 50, "NaN", '{"a": 1e999}', "[-Infinity]", "nonsense"])
def test_documents_of_a_server_are_finite_and_not_deep(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        plain_json.loads(text)
    assert plain_json.loads('{"a": [1.5, {"b": null}]}') == {"a": [1.5, {"b": None}]}


def test_runs_are_shown_as_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with live(3, stream) as shown:
        assert isinstance(shown, Lines)
        shown.show(Load("concurrency", 8), 2, {"requests_per_second": 12.345678, "unknown": 1.0})
    assert stream.getvalue() == "concurrency 8, run 2 of 3: requests/s 12.35\n"


def test_runs_are_shown_as_a_table_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    from gateway.benchmark.live import RichTable

    with RichTable(3) as shown:
        shown.show(Load("concurrency", 8), 2, {"requests_per_second": 12.345678})
        cells = [list(column.cells) for column in shown._table().columns]
    assert cells == [["8"], ["2/3"], ["12.35"]]


def test_counters_are_summed_over_engines_and_survive_a_restart() -> None:
    text = '# HELP x y\ntextgen_preemptions_total{engine="0"} 2.0\ntextgen_preemptions_total{engine="1"} 3\nother 1\n'
    assert read_counters(text) == {"preemptions": 5.0}
    assert read_counters("<html>") == {}
    for odd in ("NaN", "+Inf", "1e999", "x"):
        assert read_counters(f"textgen_preemptions_total {odd}\n") == {}
        assert read_counters(f'textgen_preemptions_total{{engine="0"}} {odd}\n{text}') == {"preemptions": 5.0}
    assert grown({"a": 5.0, "b": 1.0}, {"a": 7.0, "b": 0.5, "c": 1.0}) == {"a": 2.0, "b": 0.5}

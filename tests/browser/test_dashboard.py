"""The dashboard in a real browser, before a real server with two engines behind two HTTP processes."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from gateway.processes.worker_spec import WORKER_MODULE
from tests.browser.conftest import AXE
from tests.gateway.processes.test_launcher import STEP
from tests.gateway.toys import write_model
from tests.processes import (
    NO_CERTIFICATES,
    PATIENCE,
    MockLauncher,
    children,
    command_line,
    running_launcher,
    two_replicas,
)

pytestmark = pytest.mark.slow

WAIT = 1000 * PATIENCE  # milliseconds, as Playwright counts
KEY = "hush"
BEARER = {"authorization": f"Bearer {KEY}"}
CHARTS = 9
# Counts what moves, and what a screen reader would be told.
WATCH = """() => {
    window.shifts = 0;
    window.said = 0;
    const moved = (list) => list.getEntries().forEach((each) => (window.shifts += each.value));
    new PerformanceObserver(moved).observe({ type: "layout-shift" });
    const status = document.querySelector("[role=status]");
    const changes = { subtree: true, childList: true, characterData: true };
    new MutationObserver((list) => (window.said += list.length)).observe(status, changes);
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockLauncher]:
    with two_replicas(tmp_path_factory.mktemp("dashboard")) as server:
        yield server


def generate(server: MockLauncher, tokens: int, headers: dict[str, str] | None = None) -> None:
    body = {"inputs": "hello", "parameters": {"max_new_tokens": tokens}}
    answer = httpx.post(
        server.url + "/generate",
        json=body,
        timeout=PATIENCE,
        headers={"connection": "close", **(headers or {})},
        **NO_CERTIFICATES,
    )
    assert answer.status_code == 200


def settled(server: MockLauncher, tokens: int) -> dict[str, float]:
    """A scrape after the engines have told of all tokens, which they do with their next step or heartbeat."""
    deadline = time.monotonic() + PATIENCE
    while counted(scraped := server.gauges(), "vllm:generation_tokens_total") < tokens:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return scraped


def opened(page: Page, server: MockLauncher) -> Page:
    page.goto(server.url + "/dashboard")
    expect(state(page)).to_have_text("Live", timeout=WAIT)
    return page


def state(page: Page) -> Locator:
    return page.get_by_role("status")


def tile(page: Page, title: str) -> Locator:
    return page.locator(f'.tile[data-title="{title}"]')


def chart(page: Page, title: str) -> Locator:
    return page.get_by_role("img", name=re.compile(f"^Chart of {title}:"))


def counted(scraped: dict[str, float], name: str) -> int:
    """The sum of a series over its labels."""
    return int(sum(value for key, value in scraped.items() if key.partition("{")[0] == name))


def test_the_numbers_are_those_of_metrics_after_real_requests(page: Page, server: MockLauncher) -> None:
    opened(page, server)
    for tokens in (3, 5, 8):
        generate(server, tokens)
    scraped = settled(server, 3 + 5 + 8)
    requests, answered = counted(scraped, "tgi_request_count"), counted(scraped, "tgi_request_success")
    expect(tile(page, "Requests")).to_contain_text(f"{requests} in all", timeout=WAIT)
    expect(tile(page, "Running")).to_contain_text(f"{answered} answered")
    expect(tile(page, "Tokens out")).to_contain_text(f"{counted(scraped, 'vllm:generation_tokens_total')} in all")
    expect(tile(page, "Tokens in")).to_contain_text(f"{counted(scraped, 'vllm:prompt_tokens_total')} in all")
    expect(tile(page, "First token").locator(".number")).to_have_text(re.compile(r"^[\d.]+(µs|ms|s)$"))
    expect(page.locator("tr[data-replica]")).to_have_count(2)
    expect(page.get_by_text("mock/model")).to_be_visible()


def test_the_charts_are_full_as_soon_as_the_page_opens(page: Page, server: MockLauncher) -> None:
    """A second visitor sees what the first one saw."""
    generate(server, 5)
    other = page.context.new_page()
    opened(other, server)
    expect(tile(other, "Tokens out").locator(".more")).not_to_have_text("0 in all", timeout=WAIT)
    opened(page, server)
    expect(chart(page, "tokens per second")).to_have_accessible_name(re.compile(r"at most [\d.]*[1-9][\d.]*/s;"))
    assert page.locator(".plot canvas").count() == CHARTS
    expect(page.get_by_role("img")).to_have_count(CHARTS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_nothing_serious_is_in_the_way_of_anybody(
    chromium: Browser, server: MockLauncher, scheme: str, width: int
) -> None:
    context = chromium.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = opened(context.new_page(), server)
    expect(page.locator(".tile")).to_have_count(12)
    page.evaluate(AXE)
    for tables in (False, True):
        if tables:
            page.get_by_role("button", name="Tables").click()
            expect(page.get_by_role("columnheader", name="Highest")).to_have_count(CHARTS)
        found = page.evaluate("async () => (await axe.run()).violations")
        faults = [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found]
        assert faults == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    context.close()


def test_it_is_used_by_keyboard_alone(page: Page, server: MockLauncher) -> None:
    opened(page, server)
    minute = page.get_by_role("button", name="1 min", exact=True)
    minute.focus()
    page.keyboard.press("Enter")
    expect(minute).to_have_attribute("aria-pressed", "true")
    time = page.locator(".tools .time")
    chart(page, "requests at work").focus()
    page.keyboard.press("ArrowLeft")
    expect(time).to_contain_text("at ")
    page.keyboard.press("Escape")
    expect(time).not_to_contain_text("at ")


def test_samples_move_nothing_but_themselves(page: Page, server: MockLauncher) -> None:
    """No layout shift, and nothing is read aloud while all is well."""
    opened(page, server)
    expect(page.locator("tr[data-replica]")).to_have_count(2)
    page.evaluate(WATCH)
    before = tile(page, "Requests").inner_text()
    for _ in range(3):
        generate(server, 4)
    expect(tile(page, "Requests")).not_to_have_text(before, timeout=WAIT)
    assert page.evaluate("[window.shifts, window.said]") == [0, 0]


def test_a_server_that_stands_still_is_seen_within_seconds(page: Page, server: MockLauncher) -> None:
    opened(page, server)
    processes = [
        server.process.pid,
        *(each for each in children(server.process.pid) if WORKER_MODULE in command_line(each)),
    ]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        expect(state(page)).to_have_text("No news", timeout=WAIT)
        expect(page.locator(".board")).to_have_class(re.compile("old"))
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)
    expect(state(page)).to_have_text("Live", timeout=WAIT)
    expect(page.locator(".board")).not_to_have_class(re.compile("old"))


def test_a_server_that_ends_and_comes_back_is_followed_again(page: Page, tmp_path: Path) -> None:
    page.expected_problems = "Failed to load resource"  # type: ignore[attr-defined]
    model = write_model(tmp_path)
    with running_launcher(model, mock=(STEP,)) as first:
        first.wait_for(200)
        for _ in range(3):
            generate(first, 5)
        opened(page, first)
        expect(tile(page, "Requests")).to_contain_text("3 in all", timeout=WAIT)
        first.process.terminate()
        expect(state(page)).to_contain_text("Reconnecting", timeout=WAIT)
        first.process.wait(PATIENCE)
    with running_launcher(model, f"--port={first.url.rpartition(':')[2]}", mock=(STEP,)) as second:
        second.wait_for(200)
        expect(state(page)).to_have_text("Live", timeout=WAIT)
        expect(tile(page, "Requests")).to_contain_text("0 in all", timeout=WAIT)
        expect(page.get_by_role("region", name="What happened")).to_contain_text("the server was started anew")
        expect(chart(page, "tokens per second")).to_have_accessible_name(re.compile(r"at most [\d.]*[1-9][\d.]*/s;"))


def test_an_engine_that_dies_shows_as_what_happened(page: Page, server: MockLauncher) -> None:
    opened(page, server)
    expect(page.locator('tr[data-replica="1"]')).to_contain_text("ready", timeout=WAIT)
    pid = server.engine_pid(1)
    os.kill(pid, signal.SIGKILL)
    happened = page.get_by_role("region", name="What happened")
    expect(happened).to_contain_text("an engine was restarted", timeout=WAIT)
    expect(happened).to_contain_text("replica 1 is ready", timeout=WAIT)
    expect(page.locator('tr[data-replica="1"] td').last).to_have_text("1")


def test_the_key_is_asked_for_once_and_kept_by_the_tab(page: Page, tmp_path: Path) -> None:
    page.expected_problems = "Failed to load resource"  # type: ignore[attr-defined]
    with running_launcher(write_model(tmp_path), f"--api-key={KEY}", mock=(STEP,)) as server:
        server.wait_for(200)
        generate(server, 3, BEARER)
        page.goto(server.url + "/dashboard")
        for given in ("wrong", KEY):
            page.get_by_label("API key", exact=True).last.fill(given)
            page.get_by_role("button", name="Continue").click()
        expect(state(page)).to_have_text("Live", timeout=WAIT)
        expect(tile(page, "Requests")).to_contain_text("1 in all", timeout=WAIT)
        page.reload()
        expect(state(page)).to_have_text("Live", timeout=WAIT)
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert KEY not in page.url


def test_behind_a_prefix_the_page_finds_its_feed(page: Page, tmp_path: Path) -> None:
    page.expected_problems = "Failed to load resource"  # type: ignore[attr-defined]  # the server ends first
    with running_launcher(write_model(tmp_path), "--root-path=/llm", mock=(STEP,)) as server:
        server.wait_for(200)
        page.goto(server.url + "/llm/dashboard")
        expect(state(page)).to_have_text("Live", timeout=WAIT)

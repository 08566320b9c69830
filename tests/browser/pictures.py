"""The pictures of the pages in `docs/images`, made again: the default model on this machine, in a real Chromium.

python -m tests.browser.pictures
"""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.conftest import CHROMIUM
from tests.processes import ROOT
from tests.servers import Server, serving

IMAGES = ROOT / "docs" / "images"
DESKTOP, PHONE = (1280, 800), (360, 740)
ASKED = "Write a Python function that returns the n-th Fibonacci number."
SECONDS = 75  # of load before the dashboard's picture: its chart of a minute is full


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with serving(Path(tempfile.mkdtemp())) as server, sync_playwright() as playwright:
        server.wait_ready()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        chat(browser, server, "playground", DESKTOP, "light")
        chat(browser, server, "playground-phone", PHONE, "dark")
        completion(browser, server)
        with load(server):
            dashboard(browser, server, "dashboard", DESKTOP, "dark", SECONDS)
            dashboard(browser, server, "dashboard-phone", PHONE, "light", 5)
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, size: tuple[int, int], scheme: str) -> Iterator[Page]:
    width, height = size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(url)
    expect(page.locator(".bar .model")).not_to_be_empty(timeout=30_000)
    yield page
    context.close()


def chat(browser: Browser, server: Server, name: str, size: tuple[int, int], scheme: str) -> None:
    with opened(browser, f"{server.url}/playground", size, scheme) as page:
        page.get_by_label("Message", exact=True).fill(ASKED)
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible(timeout=120_000)
        page.wait_for_timeout(1000)
        page.screenshot(path=IMAGES / f"{name}.png")


def completion(browser: Browser, server: Server) -> None:
    with opened(browser, f"{server.url}/playground#completion", DESKTOP, "dark") as page:
        page.get_by_label("Max tokens", exact=True).fill("60")
        page.get_by_role("button", name="Complete").click()
        expect(page.get_by_role("button", name="Complete")).to_be_visible(timeout=120_000)
        page.locator(".token.made").nth(9).hover()
        page.wait_for_timeout(1000)
        page.screenshot(path=IMAGES / "completion.png")


def dashboard(browser: Browser, server: Server, name: str, size: tuple[int, int], scheme: str, seconds: int) -> None:
    with opened(browser, f"{server.url}/dashboard", size, scheme) as page:
        page.wait_for_timeout(1000 * seconds)
        if size == DESKTOP:
            page.get_by_role("button", name="1 min").click()
            page.wait_for_timeout(1500)
        page.screenshot(path=IMAGES / f"{name}.png")


@contextmanager
def load(server: Server) -> Iterator[None]:
    """Three clients that ask one thing after another."""
    over = threading.Event()

    def ask(number: int) -> None:
        for count in range(1, 10_000):
            if over.wait(0.3 * number):
                return
            words = f"Tell me about the number {count * number}, and about what it is made of. " * (1 + count % 4)
            body = {"prompt": words, "max_tokens": 20 + 7 * (count % 5)}
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)

    threads = [threading.Thread(target=ask, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()

"""The chat of `/playground` in Chromium, in front of a launcher with the mock engine."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import faults
from tests.clients.environments import interpreter
from tests.gateway.toys import byte_level, write_model
from tests.processes import MockLauncher, is_busy, running_launcher

pytestmark = pytest.mark.slow
STEP = 0.05  # seconds of the mock engine's step: one token of each request
SLOW_STEP = 0.5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockLauncher]:
    with saying_hello(tmp_path_factory.mktemp("chat"), STEP) as launcher:
        yield launcher


@contextmanager
def saying_hello(directory: Path, step: float) -> Iterator[MockLauncher]:
    """A server whose engine says "hello world" over and over, a token a step."""
    script = [str(each) for each in byte_level().encode(" hello world", add_special_tokens=False).ids]
    mock = (f"--step-seconds={step}", "--script", *script)
    with running_launcher(write_model(directory), "--api-key=hush", "--root-path=/llm", mock=mock) as launcher:
        launcher.wait_for(200)
        yield launcher


@pytest.fixture
def chat(page: Page, server: MockLauncher) -> Page:
    """The page as a browser finds it below the server's prefix, with the key given."""
    return opened(page, server)


def opened(page: Page, server: MockLauncher) -> Page:
    page.expected_problems = "401 (Unauthorized)"  # type: ignore[attr-defined]
    page.goto(f"{server.url}/llm/")
    page.get_by_role("textbox", name="API key").fill("hush")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".bar .model")).not_to_be_empty()
    return page


def say(page: Page, words: str) -> None:
    page.get_by_label("Message", exact=True).fill(words)
    page.keyboard.press("Enter")


def end(page: Page) -> None:
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible(timeout=30_000)


def set_max_tokens(page: Page, count: int) -> None:
    page.locator(".view:visible").get_by_label("Max tokens", exact=True).fill(str(count))


def answers(page: Page) -> list[str]:
    return page.locator(".message.assistant .markdown").all_inner_texts()


def running(server: MockLauncher) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))


def test_a_browser_at_the_root_is_asked_for_the_key_once_and_no_url_ever_holds_it(
    page: Page, server: MockLauncher
) -> None:
    page.expected_problems = "401 (Unauthorized)"  # type: ignore[attr-defined]
    asked: list[tuple[str, str | None]] = []
    page.on("request", lambda each: asked.append((each.url, each.headers.get("authorization"))))
    page.goto(f"{server.url}/llm/")
    assert page.url == f"{server.url}/llm/playground"
    dialog = page.get_by_role("dialog", name="API key")
    expect(dialog).to_be_visible()
    dialog.get_by_label("API key").fill("wrong")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("refused")
    dialog.get_by_label("API key").fill("hush")
    page.keyboard.press("Enter")
    expect(page.locator(".bar .model")).not_to_be_empty()
    expect(dialog).to_be_hidden()
    page.reload()
    expect(page.locator(".bar .model")).not_to_be_empty()
    expect(dialog).to_be_hidden()
    assert not [url for url, _ in asked if "hush" in url or "wrong" in url]
    assert {key for url, key in asked if "/web/" in url or url.endswith("/playground")} == {None}
    assert ("Bearer hush") in {key for url, key in asked if url.endswith("/v1/models")}
    assert all(url.startswith(f"{server.url}/llm/") for url, _ in asked), "the page asks below the prefix alone"


def test_an_answer_streams_with_its_figures(chat: Page) -> None:
    set_max_tokens(chat, 40)
    say(chat, "hello")
    expect(chat.locator(".message.assistant .markdown")).to_contain_text("hello", timeout=10_000)
    seen = answers(chat)[0]
    end(chat)
    expect(chat.get_by_role("button", name="Attach pictures")).to_have_count(0)  # this model sees none
    assert len(answers(chat)[0]) > len(seen), "it came at once"
    figures = dict(
        zip(
            chat.locator(".message.assistant .figures dt").all_inner_texts(),
            chat.locator(".message.assistant .figures dd").all_inner_texts(),
            strict=True,
        )
    )
    assert figures["answer"] == "40 tokens" and figures["end"] == "reached max tokens"
    assert 0.5 / STEP < float(figures["speed"].removesuffix(" tok/s")) < 1.5 / STEP
    expect(chat.locator(".context")).to_contain_text("/ 2,048")


@pytest.mark.parametrize("how", ["button", "Escape"])
def test_stop_ends_the_work_in_the_engine_within_two_steps(page: Page, tmp_path: Path, how: str) -> None:
    with saying_hello(tmp_path, SLOW_STEP) as server:
        chat = opened(page, server)
        say(chat, "hello")
        expect(chat.locator(".message.assistant .markdown")).to_contain_text("world", timeout=10_000)
        assert running(server) == 1
        chat.get_by_role("button", name="Stop").click() if how == "button" else chat.keyboard.press("Escape")
        stopped = time.monotonic()
        while running(server):
            assert time.monotonic() < stopped + 2 * SLOW_STEP or is_busy(), "it is still at work"
            assert time.monotonic() < stopped + 20 * SLOW_STEP, "it is still at work"
        end(chat)
        expect(chat.locator(".message.assistant .figures")).to_contain_text("stopped by you")
        words = answers(chat)
        chat.wait_for_timeout(1000 * 2 * SLOW_STEP)
        assert answers(chat) == words


def test_editing_and_regenerating_make_branches_that_are_all_kept(chat: Page) -> None:
    set_max_tokens(chat, 4)
    say(chat, "first")
    end(chat)
    chat.get_by_role("button", name="Regenerate").click()
    end(chat)
    expect(chat.locator(".message.assistant .branches")).to_contain_text("2 / 2")
    chat.locator(".message.user").get_by_role("button", name="Edit").click()
    chat.get_by_label("Edited message").fill("second")
    chat.keyboard.press("Control+Enter")
    end(chat)
    assert chat.locator(".message.user .written").all_inner_texts() == ["second"]
    chat.locator(".message.user").get_by_label("Earlier branch").click()
    assert chat.locator(".message.user .written").all_inner_texts() == ["first"]
    expect(chat.locator(".message.assistant .branches")).to_contain_text("2 / 2")
    chat.locator(".message.assistant").get_by_label("Earlier branch").click()
    expect(chat.locator(".message.assistant .branches")).to_contain_text("1 / 2")


def test_continue_goes_on_with_the_same_message(chat: Page) -> None:
    set_max_tokens(chat, 6)
    say(chat, "hello")
    end(chat)
    short = answers(chat)[0]
    bodies: list[dict[str, object]] = []
    chat.on("request", lambda each: bodies.append(json.loads(each.post_data or "{}")))
    chat.get_by_role("button", name="Continue").click()
    end(chat)
    asked = next(each for each in bodies if each.get("stream"))
    assert asked["continue_final_message"] is True and asked["add_generation_prompt"] is False
    assert asked["messages"][-1]["role"] == "assistant"  # type: ignore[index]
    assert answers(chat)[0].startswith(short) and len(answers(chat)[0]) > len(short)
    assert chat.locator(".message").count() == 2


def test_chats_live_in_this_browser_can_be_found_exported_and_imported(chat: Page, tmp_path: Path) -> None:
    set_max_tokens(chat, 4)
    chat.get_by_label("System prompt").fill("be brief")
    say(chat, "about lighthouses")
    end(chat)
    chat.get_by_role("button", name="New chat").click()
    say(chat, "about trains")
    end(chat)
    expect(chat.locator(".history li")).to_have_count(2)
    chat.keyboard.press("Control+k")
    chat.keyboard.type("LIGHT")
    expect(chat.locator(".history li")).to_have_count(1)
    chat.locator(".history .open").click()
    with chat.expect_download() as download:
        chat.get_by_role("button", name="Export").click()
    download.value.save_as(path := tmp_path / "chat.json")
    exported = json.loads(path.read_text())["messages"]
    assert [each["role"] for each in exported] == ["system", "user", "assistant"]
    assert exported[0]["content"] == "be brief" and exported[1]["content"] == "about lighthouses"
    chat.reload()
    expect(chat.locator(".history li")).to_have_count(2)
    (plain := tmp_path / "plain.json").write_text(json.dumps(exported[1:]))
    chat.get_by_label("File to import").set_input_files(plain)
    expect(chat.locator(".history li")).to_have_count(3)
    assert chat.locator(".message.user .written").all_inner_texts() == ["about lighthouses"]
    (wrong := tmp_path / "wrong.json").write_text('{"messages": [{"role": "king"}]}')
    chat.get_by_label("File to import").set_input_files(wrong)
    expect(chat.get_by_role("alert")).to_contain_text("wrong.json can't be imported")


def test_settings_are_sent_as_the_server_describes_them_and_wrong_ones_are_told(chat: Page) -> None:
    api = httpx.get(f"{chat.url.removesuffix('/playground')}/openapi.json", headers={"authorization": "Bearer hush"})
    body = api.json()["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    described = body["schema"]["properties"]["presence_penalty"]["anyOf"][0]
    field = chat.get_by_label("Presence penalty", exact=True)
    assert (field.get_attribute("min"), field.get_attribute("max")) == (
        f"{described['minimum']:g}",
        f"{described['maximum']:g}",
    )
    set_max_tokens(chat, 3)
    field.fill("0.5")
    chat.get_by_role("button", name="Lock a seed").click()
    bodies: list[dict[str, object]] = []
    chat.on("request", lambda each: bodies.append(json.loads(each.post_data or "{}")))
    say(chat, "hello")
    end(chat)
    asked = next(each for each in bodies if each.get("stream"))
    assert asked["presence_penalty"] == 0.5 and asked["max_tokens"] == 3 and isinstance(asked["seed"], int)
    assert "top_p" not in asked, "what is not chosen is not sent"
    chat.get_by_text("Further fields").click()
    chat.get_by_label("Further fields").fill('{"temperature": 9}')
    say(chat, "hello")
    expect(chat.get_by_role("alert")).to_contain_text("temperature")
    chat.expected_problems = "status of 4"  # type: ignore[attr-defined]


@pytest.mark.parametrize("view", ["chat", "completion"])
def test_a_request_shown_as_code_runs_with_each_client_and_holds_no_key(
    chat: Page, server: MockLauncher, view: str
) -> None:
    words = 'it\'s "quoted" \\ and\nbroken'
    chat.goto(f"{chat.url}#{view}")
    expect(chat.locator(f'.tabs a[href="#{view}"]')).to_have_attribute("aria-current", "true")
    set_max_tokens(chat, 8)
    shown = chat.locator(".view:visible")
    shown.get_by_text("Stop texts").click()
    shown.get_by_label("Stop texts").fill("never\nat all")
    shown.get_by_label("Message" if view == "chat" else "Text to continue", exact=True).fill(words)
    shown.get_by_role("button", name="As code").click()
    for name in ("curl", "openai", "huggingface_hub", "LangChain"):
        shown.get_by_role("button", name=name, exact=True).click()
        text = shown.locator(".snippets pre").inner_text()
        assert "hush" not in text and f"{server.url}/llm" in text
        program = ["bash", "-c", text] if name == "curl" else [interpreter("modern"), "-c", text]
        env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "API_KEY": "hush"}
        run = subprocess.run(program, env=env, capture_output=True, text=True, timeout=120)
        assert "hello world" in run.stdout, f"{name}: {run.stdout}{run.stderr}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_axe_finds_no_serious_fault(chat: Page, scheme: str, width: int) -> None:
    chat.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    chat.set_viewport_size({"width": width, "height": 740})
    set_max_tokens(chat, 8) if width > 1000 else None
    for view in ("chat", "completion", "compare", "tokens"):
        chat.goto(f"{chat.url.split('#')[0]}#{view}")
        expect(chat.locator(f'.tabs a[href="#{view}"]')).to_have_attribute("aria-current", "true")
        if view == "chat":
            say(chat, "hello")
            expect(chat.locator(".message.assistant .markdown")).to_contain_text("hello", timeout=10_000)
            chat.keyboard.press("Escape")
            end(chat)
        assert faults(chat) == [], view
        assert chat.evaluate("() => document.documentElement.scrollWidth") <= width, f"{view} is wider than the window"

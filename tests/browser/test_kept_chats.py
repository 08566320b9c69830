"""What `/playground` keeps of chats, whatever its user does meanwhile; and what becomes of answers that fail."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_chat import STEP, answers, end, opened, say, saying_hello, set_max_tokens
from tests.processes import MockLauncher

pytestmark = pytest.mark.slow
KEPT = 1000  # milliseconds in which a change is kept


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockLauncher]:
    with saying_hello(tmp_path_factory.mktemp("kept"), STEP) as launcher:
        yield launcher


@pytest.fixture
def chat(page: Page, server: MockLauncher) -> Page:
    return opened(page, server)


def begin(page: Page, words: str) -> None:
    """Ask, and wait for the first words of an answer that does not end by itself."""
    set_max_tokens(page, 1500)
    say(page, words)
    expect(page.locator(".message.assistant .markdown").last).to_contain_text("hello", timeout=10_000)


def said(page: Page) -> list[str]:
    return page.locator(".message.user .written").all_inner_texts()


def open_chat(page: Page, words: str) -> None:
    page.locator(".history .open", has_text=words).click()
    expect(page.locator(".message.user .written").first).to_have_text(words)


def answering(page: Page, status: int, body: str, kind: str = "text/event-stream") -> None:
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=status, body=body, content_type=kind))


def event(**delta: Any) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': None}]})}\n\n"


def test_another_chat_that_is_opened_meanwhile_stays_as_it_was_and_what_there_is_of_the_answer_is_kept(
    chat: Page,
) -> None:
    set_max_tokens(chat, 3)
    say(chat, "about trains")
    end(chat)
    trains = answers(chat)
    chat.get_by_role("button", name="New chat").click()
    begin(chat, "about ships")
    open_chat(chat, "about trains")
    chat.wait_for_timeout(4000 * STEP)
    assert answers(chat) == trains and said(chat) == ["about trains"]
    open_chat(chat, "about ships")
    expect(chat.locator(".message.assistant .markdown")).to_contain_text("hello")
    expect(chat.locator(".figures")).to_contain_text("stopped by you")


def test_a_reload_while_an_answer_streams_loses_neither_question_nor_answer(chat: Page) -> None:
    begin(chat, "about ships")
    chat.wait_for_timeout(2 * KEPT)
    chat.reload()
    open_chat(chat, "about ships")
    expect(chat.locator(".message.assistant .markdown")).to_contain_text("hello")


def test_the_answer_goes_on_while_another_view_is_looked_at_and_a_draft_stays(chat: Page) -> None:
    begin(chat, "about ships")
    before = answers(chat)[0]
    chat.get_by_label("Message", exact=True).fill("half a thought")
    chat.get_by_role("link", name="Tokens").click()
    chat.wait_for_timeout(6000 * STEP)
    chat.get_by_role("link", name="Chat", exact=True).click()
    assert len(answers(chat)[0]) > len(before)
    expect(chat.get_by_label("Message", exact=True)).to_have_value("half a thought")
    expect(chat.get_by_role("button", name="Stop")).to_be_visible()


def grow(page: Page) -> None:
    """Wait until more of the answer is shown, for which all of the chat is drawn anew."""
    answer = page.locator(".message.assistant .markdown").last
    expect(answer).not_to_have_text(answer.inner_text())


def test_a_number_that_is_typed_while_an_answer_streams_stays_as_it_is_typed_and_counts_next(chat: Page) -> None:
    begin(chat, "about ships")
    for name, number in (("Temperature", "0.05"), ("Presence penalty", "-1.50"), ("Seed", "4e1"), ("Max tokens", "3")):
        field = chat.get_by_label(name, exact=True)
        field.clear()
        for key in number:
            grow(chat)
            field.press(key)
        grow(chat)
        expect(field).to_have_value(number)
    chat.keyboard.press("Escape")
    end(chat)
    with chat.expect_request("**/v1/chat/completions") as request:
        say(chat, "about trains")
    asked = request.value.post_data_json
    assert (asked["temperature"], asked["presence_penalty"], asked["seed"], asked["max_tokens"]) == (0.05, -1.5, 40, 3)
    end(chat)


def test_system_prompt_branch_and_deletion_are_kept(chat: Page) -> None:
    set_max_tokens(chat, 3)
    chat.get_by_label("System prompt").fill("be brief")
    say(chat, "about trains")
    end(chat)
    chat.get_by_role("button", name="Regenerate").click()
    end(chat)
    chat.get_by_label("Earlier branch").click()
    chat.get_by_role("button", name="New chat").click()
    expect(chat.get_by_label("System prompt")).to_have_value("")
    open_chat(chat, "about trains")
    expect(chat.get_by_label("System prompt")).to_have_value("be brief")
    expect(chat.locator(".branches")).to_contain_text("1 / 2")
    chat.on("dialog", lambda dialog: dialog.accept())
    chat.locator(".message.user").get_by_role("button", name="Delete").click()
    expect(chat.locator(".message")).to_have_count(0)
    chat.wait_for_timeout(KEPT)
    chat.reload()
    expect(chat.locator(".history li")).to_have_count(1)
    chat.locator(".history .open").click()
    expect(chat.locator(".message")).to_have_count(0)
    chat.get_by_role("button", name="Delete New chat").click()
    expect(chat.locator(".history li")).to_have_count(0)


def test_two_tabs_with_one_chat_keep_what_both_have_added(chat: Page, server: MockLauncher) -> None:
    set_max_tokens(chat, 3)
    say(chat, "the beginning")
    end(chat)
    chat.wait_for_timeout(KEPT)
    other = chat.context.new_page()
    other.goto(chat.url)
    other.get_by_role("textbox", name="API key").fill("hush")
    other.keyboard.press("Enter")
    expect(other.locator(".history li")).to_have_count(1)
    open_chat(other, "the beginning")
    for page, words in ((chat, "one tab's"), (other, "the other tab's")):
        page.bring_to_front()
        say(page, words)
        end(page)
        page.wait_for_timeout(KEPT)
    other.reload()
    expect(other.locator(".history li")).to_have_count(1)
    open_chat(other, "the beginning")
    assert said(other)[-1] == "the other tab's"
    other.locator(".message.user").last.get_by_label("Earlier branch").click()
    assert said(other)[-1] == "one tab's"


def test_the_question_is_what_is_left_where_the_server_refuses(chat: Page) -> None:
    chat.expected_problems = "status of"  # type: ignore[attr-defined]
    answering(chat, 429, '{"error": {"message": "too many requests"}}', "application/json")
    say(chat, "hello")
    expect(chat.get_by_role("alert")).to_contain_text("too many requests")
    expect(chat.locator(".message")).to_have_count(1)
    chat.unroute("**/v1/chat/completions")
    set_max_tokens(chat, 3)
    chat.get_by_role("button", name="Answer").click()
    end(chat)
    assert len(answers(chat)) == 1 and answers(chat)[0]
    expect(chat.get_by_role("alert")).to_have_count(0)


def test_an_answer_whose_stream_ends_too_early_is_said_to_be_broken(chat: Page) -> None:
    answering(chat, 200, event(content="hello wor"))
    say(chat, "hello")
    expect(chat.get_by_role("alert")).to_contain_text("broke off")
    expect(chat.locator(".figures")).to_contain_text("broke off")
    assert answers(chat) == ["hello wor"]


def test_a_second_click_on_send_does_not_stop_what_the_first_began(chat: Page) -> None:
    set_max_tokens(chat, 10)
    chat.get_by_label("Message", exact=True).fill("hello")
    chat.get_by_role("button", name="Send", exact=True).dblclick()
    end(chat)
    expect(chat.locator(".figures")).to_contain_text("reached max tokens")


def test_a_key_that_no_header_carries_is_refused_and_a_closed_dialog_comes_back(
    page: Page, server: MockLauncher
) -> None:
    page.expected_problems = "401 (Unauthorized)"  # type: ignore[attr-defined]
    page.goto(f"{server.url}/llm/playground")
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_label("API key").fill("ключ")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("ASCII")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("alert")).to_contain_text("none was given")
    page.get_by_role("button", name="Ask again").click()
    dialog.get_by_label("API key").fill("hush")
    page.keyboard.press("Enter")
    expect(page.locator(".bar .model")).not_to_be_empty()


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"messages": [{"role": "king", "content": "a"}]}',
        '{"messages": [{"role": "user", "content": 5}]}',
        '{"messages": [{"role": "assistant", "tool_calls": [{}]}]}',
        '{"branches": {"nodes": {"a": {"id": "a", "parent": "a", "role": "user", "content": "x"}}}}',
        "nonsense",
    ],
)
def test_a_file_that_holds_no_chat_is_refused_by_name(chat: Page, tmp_path: Path, content: str) -> None:
    (file := tmp_path / "odd.json").write_text(content)
    chat.get_by_label("File to import").set_input_files(file)
    expect(chat.get_by_role("alert")).to_contain_text("odd.json can't be imported")
    expect(chat.locator(".history li")).to_have_count(0)


def test_of_a_file_only_what_is_known_is_taken(chat: Page, tmp_path: Path) -> None:
    nodes = {
        "__proto__x": {
            "id": "9007199254740992",
            "parent": None,
            "role": "user",
            "content": "first",
            "stats": {"rate": "q"},
        },
        "b": {
            "id": "b",
            "parent": "9007199254740992",
            "role": "assistant",
            "content": [{"text": "se"}, {"text": "cond"}],
        },
        "c": {"id": "c", "parent": "nowhere", "role": "user", "content": "lost"},
    }
    branches = {"id": "x", "nodes": nodes, "leaf": "constructor", "title": 5, "system": None}
    (file := tmp_path / "odd.json").write_text(json.dumps({"messages": [], "branches": branches}))
    chat.get_by_label("File to import").set_input_files(file)
    expect(chat.locator(".message")).to_have_count(2)
    assert said(chat) == ["first"] and answers(chat) == ["second"]
    set_max_tokens(chat, 3)
    say(chat, "hello")
    end(chat)
    assert chat.locator(".message").count() == 4


GROWN = """
3. three
4. four

```py
x = "<b>"
```

| a | b |
|:-:|--:|
| 1 | 2 |

[x][1] and [1]: not yet

[1]: https://fine.example

- one

- two
  - inner

> quote
> more

<div>
  <p>html</p>
</div>

last *line*
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_markdown_that_grows_becomes_what_it_is_at_once(chat: Page, newline: str) -> None:
    text = GROWN.replace("\n", newline)
    texts = []
    for pieces in ([text], [text[at : at + 3] for at in range(0, len(text), 3)]):
        body = "".join(event(content=each) for each in pieces) + "data: [DONE]\n\n"
        answering(chat, 200, body)
        say(chat, "hello")
        expect(chat.locator(".message.assistant .markdown").last).to_contain_text("last line")
        texts.append(shape(chat))
        chat.unroute("**/v1/chat/completions")
    assert texts[0] == texts[1]
    for each in ('<ol start="3">', 'align="center"', "&lt;p&gt;html"):
        assert each in texts[0]


def shape(page: Page) -> str:
    """The HTML of the last answer, however its blocks are grouped."""
    blocks = page.locator(".message.assistant .markdown").last.locator(":scope > *")
    return "".join(each.inner_html() for each in blocks.all()).replace("\n", "")


def test_code_that_is_longer_than_a_window_stays_code_and_what_follows_is_read_as_markdown(chat: Page) -> None:
    chat.expected_problems = "status of 4"  # type: ignore[attr-defined]  # 400: its tokens are too many to be counted
    code = "".join(f"# a **line** of code number {number}\n" for number in range(3000))
    answering(chat, 200, event(content=f"```py\n{code}```\n\nand **then**\n\nthe end") + "data: [DONE]\n\n")
    say(chat, "hello")
    expect(chat.locator(".message.assistant .markdown")).to_contain_text("the end", timeout=20_000)
    assert chat.locator(".markdown strong").all_inner_texts() == ["then"]


def test_without_a_database_chats_last_as_long_as_the_page_and_it_says_so(page: Page, server: MockLauncher) -> None:
    page.add_init_script("delete window.indexedDB; Object.defineProperty(window, 'indexedDB', {value: undefined})")
    chat = opened(page, server)
    expect(chat.locator(".history")).to_contain_text("keeps no chats")
    set_max_tokens(chat, 3)
    say(chat, "about trains")
    end(chat)
    chat.get_by_role("button", name="New chat").click()
    open_chat(chat, "about trains")

"""Pictures in the chat of `/playground`, in Chromium, in front of a launcher with a mock engine that sees."""

import base64
import io
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from playwright.sync_api import JSHandle, Page, expect

from gateway.text.tokenizer import Tokenizer
from tests.browser.conftest import faults
from tests.browser.test_chat import answers, end, say, set_max_tokens
from tests.clients.environments import interpreter
from tests.gateway.images.models import changed
from tests.gateway.seeing import IMAGE, data_url, png
from tests.processes import MockLauncher, running_launcher

pytestmark = pytest.mark.slow
BODY = 200_000  # bytes
BODIES = (f"--payload-limit={BODY}", f"--image-payload-limit={BODY}")
LIMITS = ("--max-images=3", "--max-image-size=50000", "--max-image-pixels=40000", *BODIES)
KEPT = 1000  # milliseconds in which a change is kept
FILES = """([names, files]) => {
  const data = new DataTransfer();
  const bytes = (file) => Uint8Array.from(atob(file), (each) => each.charCodeAt(0));
  files.forEach((file, at) => data.items.add(new File([bytes(file)], names[at], { type: "image/png" })));
  return data;
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockLauncher]:
    """Its engine says "hello" over and over."""
    directory = changed("llava", tmp_path_factory.mktemp("seeing"), {})
    script = [str(each) for each in Tokenizer.load(directory).encode("hello ", add_special_tokens=False)]
    mock = (f"--image-token-id={IMAGE}", f"--patch-values={3 * 14 * 14}", "--script", *script)
    with running_launcher(directory, *LIMITS, mock=mock) as launcher:
        launcher.wait_for(200)
        yield launcher


@pytest.fixture
def chat(page: Page, server: MockLauncher) -> Page:
    page.goto(f"{server.url}/playground")
    expect(page.get_by_role("button", name="Attach pictures")).to_be_visible()
    set_max_tokens(page, 3)
    return page


def file(name: str, content: bytes | None = None, kind: str = "image/png") -> Any:
    """A file as it is chosen: a picture named so that it is like no other."""
    return {"name": name, "mimeType": kind, "buffer": png(seed=len(name)) if content is None else content}


def plain(width: int, height: int) -> bytes:
    """A file that is small for its pixels."""
    content = io.BytesIO()
    Image.new("RGB", (width, height)).save(content, "PNG")
    return content.getvalue()


def attach(page: Page, *files: Any, refused: int = 0) -> None:
    pictures = page.locator(".composer .pictures img")
    before = pictures.count()
    page.get_by_label("Pictures to attach").set_input_files(list(files))
    expect(pictures).to_have_count(before + len(files) - refused)


def brought(page: Page, *files: Any) -> JSHandle:
    """The files in a `DataTransfer`."""
    names = [each["name"] for each in files]
    return page.evaluate_handle(FILES, [names, [base64.b64encode(each["buffer"]).decode() for each in files]])


def attached(page: Page) -> list[str | None]:
    return [each.get_attribute("alt") for each in page.locator(".composer .pictures img").all()]


def asking(page: Page, act: Callable[[], None]) -> list[Any]:
    """The messages that are sent to be answered."""
    with page.expect_request(lambda each: each.url.endswith("/v1/chat/completions")) as request:
        act()
    end(page)
    body: Any = request.value.post_data_json
    found: list[Any] = body["messages"]
    return found


def part(picture: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(picture["buffer"])}}


def encoded(server: MockLauncher) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("textgen_images_encoded_total{"))


def test_pictures_are_chosen_pasted_or_dropped_sent_and_shown(chat: Page, server: MockLauncher) -> None:
    chosen, pasted, dropped = file("chosen.png"), file("pasted one.png"), file("dropped.png")
    attach(chat, chosen)
    message = chat.get_by_label("Message", exact=True)
    message.evaluate(
        "(field, data) => field.dispatchEvent(new ClipboardEvent('paste', "
        "{ clipboardData: data, bubbles: true, cancelable: true }))",
        brought(chat, pasted),
    )
    expect(chat.locator(".composer .pictures img")).to_have_count(2)
    area = chat.get_by_role("region", name="Chat", exact=True)
    area.dispatch_event("dragover", {"dataTransfer": brought(chat, dropped)})
    expect(area).to_have_class("talk over")
    area.dispatch_event("drop", {"dataTransfer": brought(chat, dropped)})
    expect(chat.locator(".composer .pictures img")).to_have_count(3)
    expect(area).not_to_have_class("talk over")
    assert attached(chat) == ["chosen.png", "pasted one.png", "dropped.png"]
    expect(chat.locator(".composer").get_by_role("status")).to_contain_text("3 of 3 pictures in this chat")
    before = encoded(server)
    [sent] = asking(chat, lambda: say(chat, "What is it?"))
    assert sent["content"] == [part(chosen), part(pasted), part(dropped), {"type": "text", "text": "What is it?"}]
    assert answers(chat)[0] and encoded(server) == before + 3
    shown = chat.locator(".message.user .pictures img")
    assert [each.get_attribute("alt") for each in shown.all()] == ["chosen.png", "pasted one.png", "dropped.png"]
    assert all(each.evaluate("each => each.naturalWidth") == 64 for each in shown.all())
    assert attached(chat) == []


def test_a_picture_alone_can_be_sent_and_goes_with_what_follows(chat: Page) -> None:
    attach(chat, picture := file("alone.png"))
    expect(chat.get_by_role("button", name="Send", exact=True)).to_be_enabled()
    first = asking(chat, lambda: chat.get_by_role("button", name="Send", exact=True).click())
    assert first == [{"role": "user", "content": [part(picture)]}]
    second = asking(chat, lambda: say(chat, "And now?"))
    assert second[0] == first[0] and second[2] == {"role": "user", "content": "And now?"}
    again = asking(chat, lambda: chat.get_by_role("button", name="Regenerate").last.click())
    assert again == second
    expect(chat.locator(".history .open")).to_have_text("alone.png")


def test_the_context_counts_pictures_each_of_which_is_sent_to_be_counted_once(chat: Page) -> None:
    counted: list[Any] = []
    chat.on("request", lambda each: counted.append(each.post_data) if each.url.endswith("/tokenize") else None)
    chat.get_by_label("Message", exact=True).fill("What is it?")
    expect(chat.locator(".context")).to_be_visible()
    blind = int(chat.locator(".context meter").get_attribute("value") or 0)
    attach(chat, file("counted.png"))
    expect(chat.locator(".context meter")).to_have_attribute("value", str(blind + 4))
    chat.get_by_label("Message", exact=True).fill("What is it, then?")
    expect(chat.locator(".context meter")).not_to_have_attribute("value", str(blind + 4))
    assert sum("base64" in each for each in counted) == 1
    asking(chat, lambda: chat.keyboard.press("Enter"))
    expect(chat.locator(".figures")).to_contain_text("prompt")


def test_keys_alone_attach_nothing_by_accident_and_remove_what_is_attached(chat: Page) -> None:
    attach(chat, file("a.png"), file("bb.png"))
    chat.get_by_role("button", name="Remove a.png").focus()
    chat.keyboard.press("Enter")
    expect(chat.get_by_role("button", name="Remove bb.png")).to_be_focused()
    chat.keyboard.press("Space")
    expect(chat.get_by_label("Message", exact=True)).to_be_focused()
    assert attached(chat) == []
    chat.keyboard.press("Shift+Tab")
    expect(chat.get_by_role("button", name="Attach pictures")).not_to_be_focused()
    with chat.expect_file_chooser():
        chat.get_by_role("button", name="Attach pictures").press("Enter")


GIF = b"GIF89a" + bytes(20)


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (file("drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"), "no PNG, JPEG, WebP, GIF"),
        (file("damaged.gif", GIF, "image/gif"), "can't be read as a picture"),
        (file("text.png", b"words"), "can't be read as a picture"),
        (file("heavy.png", png() + bytes(50_000)), "at most 49 KB are read"),
        (file("wide.png", plain(400, 101)), "has 400 \u00d7 101 pixels, at most 40,000 in all are read"),
    ],
)
def test_what_the_server_would_refuse_is_told_before_it_is_sent(chat: Page, picture: Any, said: str) -> None:
    attach(chat, picture, file("fine.png"), refused=1)
    expect(chat.get_by_role("alert")).to_contain_text(picture["name"])
    expect(chat.get_by_role("alert")).to_contain_text(said)
    assert attached(chat) == ["fine.png"]


def test_pictures_beyond_the_number_or_the_size_of_a_request_are_told_by_name(chat: Page) -> None:
    attach(chat, *(file(f"{number}.png", png(99, 99, number)) for number in range(5)), refused=2)
    expect(chat.get_by_role("alert")).to_contain_text("3.png is one too many: a chat may have 3; 4.png is one too many")
    asking(chat, lambda: say(chat, "hello"))
    attach(chat, file("late.png"), refused=1)
    expect(chat.get_by_role("alert")).to_contain_text("late.png is one too many")
    chat.get_by_role("button", name="New chat").click()
    attach(chat, *(file(f"{number}.png", png(120, 120, number)) for number in range(3)), refused=1)
    expect(chat.get_by_role("alert")).to_contain_text("2.png is too large: a request may have 195 KB")
    assert attached(chat) == ["0.png", "1.png"]


def kept_pictures(page: Page) -> int:
    """How many the browser's database has."""
    return page.evaluate(
        """() => new Promise((resolve) => {
          indexedDB.open("playground").onsuccess = ({ target }) => {
            const count = target.result.transaction("pictures").objectStore("pictures").count();
            count.onsuccess = () => (target.result.close(), resolve(count.result));
          };
        })"""
    )


def test_pictures_are_kept_with_their_chat_and_go_with_it(chat: Page) -> None:
    attach(chat, kept := file("kept.png"))
    first = asking(chat, lambda: say(chat, "What is it?"))
    chat.wait_for_timeout(KEPT)
    chat.reload()
    chat.get_by_role("button", name="What is it?", exact=True).click()
    picture = chat.locator(".message.user .pictures img")
    expect(picture).to_have_attribute("src", data_url(kept["buffer"]))
    set_max_tokens(chat, 3)
    assert asking(chat, lambda: chat.get_by_role("button", name="Regenerate").click()) == first
    chat.wait_for_timeout(KEPT)
    assert kept_pictures(chat) == 1
    chat.on("dialog", lambda dialog: dialog.accept())
    chat.get_by_role("button", name="Delete What is it?").click()
    expect(chat.locator(".history li")).to_have_count(0)
    chat.wait_for_timeout(KEPT)
    assert kept_pictures(chat) == 0


BEFORE_PICTURES = """() => new Promise((resolve) => {
  const request = indexedDB.open("playground", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("chats", { keyPath: "id" });
  request.onsuccess = ({ target: { result } }) => {
    const node = { id: "n", parent: null, role: "user", content: "an old one", made: 1 };
    const chat = { id: "c", created: 1, updated: 1, system: "", nodes: { n: node }, leaf: "n" };
    const transaction = result.transaction("chats", "readwrite");
    transaction.objectStore("chats").put(chat);
    transaction.oncomplete = () => (result.close(), resolve());
  };
})"""


def test_chats_that_were_kept_before_there_were_pictures_are_still_there(page: Page, server: MockLauncher) -> None:
    page.goto(f"{server.url}/dashboard")
    page.evaluate(BEFORE_PICTURES)
    page.goto(f"{server.url}/playground")
    page.get_by_role("button", name="an old one", exact=True).click()
    set_max_tokens(page, 3)
    attach(page, new := file("new.png"))
    assert asking(page, lambda: say(page, "more"))[1]["content"][0] == part(new)
    page.wait_for_timeout(KEPT)
    assert kept_pictures(page) == 1


def test_an_edited_message_keeps_its_pictures_but_those_that_are_removed(chat: Page) -> None:
    attach(chat, gone := file("gone.png"), stays := file("stays on.png"))
    assert asking(chat, lambda: say(chat, "first"))[0]["content"][:2] == [part(gone), part(stays)]
    chat.locator(".message.user").get_by_role("button", name="Edit").click()
    chat.get_by_role("button", name="Remove gone.png").click()
    chat.get_by_label("Edited message").fill("second")
    [sent] = asking(chat, lambda: chat.keyboard.press("Control+Enter"))
    assert sent["content"] == [part(stays), {"type": "text", "text": "second"}]
    chat.locator(".message.user").get_by_label("Earlier branch").click()
    expect(chat.locator(".message.user .pictures img")).to_have_count(2)


def test_a_browser_without_room_keeps_the_text_and_says_so(chat: Page) -> None:
    origin = chat.evaluate("() => location.origin")
    used = chat.evaluate("async () => (await navigator.storage.estimate()).usage")
    quota = {"origin": origin, "quotaSize": used + 30_000}
    chat.context.new_cdp_session(chat).send("Storage.overrideQuotaForOrigin", quota)
    attach(chat, file("large.png", png(120, 120)))
    first = asking(chat, lambda: say(chat, "What is it?"))
    expect(chat.locator(".history")).to_contain_text("no room for more pictures")
    assert asking(chat, lambda: chat.get_by_role("button", name="Regenerate").click()) == first, "it lasts as the page"
    chat.wait_for_timeout(KEPT)
    chat.reload()
    chat.get_by_role("button", name="What is it?", exact=True).click()
    expect(chat.locator(".message.user .pictures")).to_have_text("large.png was not kept")
    chat.get_by_role("button", name="Regenerate").click()
    expect(chat.get_by_role("alert")).to_contain_text("large.png was not kept by this browser")


def test_an_exported_chat_has_its_pictures_in_openai_s_messages_and_in_all_branches(chat: Page, tmp_path: Path) -> None:
    attach(chat, seen := file("seen.png"))
    asking(chat, lambda: say(chat, "first"))
    chat.locator(".message.user").get_by_role("button", name="Edit").click()
    chat.get_by_role("button", name="Remove seen.png").click()
    asking(chat, lambda: chat.keyboard.press("Control+Enter"))
    with chat.expect_download() as download:
        chat.get_by_role("button", name="Export").click()
    download.value.save_as(path := tmp_path / "chat.json")
    assert json.loads(path.read_text())["messages"][0] == {"role": "user", "content": "first"}
    chat.get_by_label("File to import").set_input_files(path)
    expect(chat.locator(".history li")).to_have_count(2)
    chat.locator(".message.user").get_by_label("Earlier branch").click()
    expect(chat.get_by_role("img", name="seen.png")).to_have_attribute("src", data_url(seen["buffer"]))
    with chat.expect_download() as download:
        chat.get_by_role("button", name="Export").click()
    download.value.save_as(path)
    messages = json.loads(path.read_text())["messages"]
    assert messages[0]["content"] == [part(seen), {"type": "text", "text": "first"}]


def test_of_imported_pictures_those_are_taken_that_are_pictures(chat: Page, tmp_path: Path) -> None:
    urls = ["https://elsewhere.example/a.png", "data:image/svg+xml;base64,AAAA", "data:image/png;base64,A'<", 7]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    good, words = file("good.png"), {"type": "text", "text": " and text"}
    messages = [{"role": "user", "content": [*parts, part(good), words]}, {"role": "assistant", "content": "yes"}]
    (path := tmp_path / "chat.json").write_text(json.dumps(messages))
    chat.get_by_label("File to import").set_input_files(path)
    expect(chat.locator(".message.user .written")).to_have_text("[image_url]" * len(urls) + " and text")
    expect(chat.locator(".message.user .pictures img")).to_have_count(1)
    sent = asking(chat, lambda: say(chat, "more"))
    assert sent[0]["content"][0] == part(good)


def test_as_code_a_picture_is_shortened_and_copied_whole(chat: Page, server: MockLauncher) -> None:
    chat.context.grant_permissions(["clipboard-read", "clipboard-write"])
    attach(chat, large := file("large.png", png(120, 120)), file("small.png"))
    chat.get_by_label("Message", exact=True).fill("it's")
    chat.get_by_role("button", name="As code").click()
    dialog = chat.get_by_role("dialog", name="This request as code")
    for name in ("curl", "openai", "huggingface_hub", "LangChain"):
        dialog.get_by_role("button", name=name, exact=True).click()
        shown = dialog.locator("pre").inner_text()
        assert "data:image/png;base64,iVBOR" in shown and " more" in shown and len(shown) < 2000
        expect(dialog).to_contain_text("Pictures are shortened here")
        dialog.get_by_role("button", name="Copy").click()
        expect(dialog.get_by_role("button", name="Copied")).to_be_visible()
        copied = chat.evaluate("() => navigator.clipboard.readText()")
        assert data_url(large["buffer"]) in copied
        if name in ("curl", "openai"):
            program = ["bash", "-c", copied] if name == "curl" else [interpreter("modern"), "-c", copied]
            env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
            run = subprocess.run(program, env=env, capture_output=True, text=True, timeout=120)
            assert "hel" in run.stdout, f"{name}: {run.stdout}{run.stderr}"
        expect(dialog.get_by_role("button", name="Copy", exact=True)).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_axe_finds_no_serious_fault(chat: Page, scheme: str, width: int) -> None:
    chat.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    chat.set_viewport_size({"width": width, "height": 740})
    attach(chat, file("wide.png", png(390, 20)), file("high.png", png(20, 300)))
    assert faults(chat) == []
    asking(chat, lambda: say(chat, "What is it?"))
    attach(chat, file("more.png"), file("too many.png"), refused=1)
    expect(chat.get_by_role("alert")).to_be_visible()
    chat.locator(".message.user").get_by_role("button", name="Edit").click()
    assert faults(chat) == []
    assert chat.evaluate("() => document.documentElement.scrollWidth") <= width

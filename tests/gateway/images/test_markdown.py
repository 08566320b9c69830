"""Where a text is cut, and how long that takes."""

import time

import pytest

from gateway.images.markdown import cut

URL = "https://example.com/a.png"


@pytest.mark.parametrize(
    "text, texts, urls",
    [
        ("", [""], []),
        ("![](a)", ["", ""], ["a"]),
        (f"a ![]({URL}) b ![](c.png)", ["a ", " b ", ""], [URL, "c.png"]),
        ("![](![](", ["![](![]("], []),
        ("![]() ![x](a) ![] (a)", ["", " ![x](a) ![] (a)"], [""]),
    ],
)
def test_a_text_is_cut_at_every_link_without_a_description(text: str, texts: list[str], urls: list[str]) -> None:
    assert cut(text, 9) == (texts, urls)


def test_no_more_links_are_looked_for_than_are_read() -> None:
    assert cut("![](a)![](b)![](c)", 2) == (["", "", "![](c)"], ["a", "b"])
    assert cut("![](a)", 0) == (["![](a)"], [])


def test_a_link_to_a_file_is_text_where_images_must_be_located() -> None:
    text = f"![](a.png)![](DATA:image/png;base64,)![](figure)![]({URL})"
    texts = ["![](a.png)", "![](figure)", ""]
    assert cut(text, 9, located=True) == (texts, ["DATA:image/png;base64,", URL])


@pytest.mark.parametrize("link", ["![](a)", "![](", "![](https://", f"![]({URL})"])
@pytest.mark.parametrize("located", [False, True])
def test_no_text_holds_the_event_loop(link: str, located: bool) -> None:
    text = link * (20_000_000 // len(link))
    began = time.thread_time()
    cut(text, 5, located=located)
    assert time.thread_time() - began < 1  # 0.1 on an idle machine

"""Pictures in a text, as TGI writes them: `![](https://…)` or `![](data:image/png;base64,…)`, without a description."""

import re

END = ")"
_ANY = re.compile(r"!\[\]\(")
_LOCATED = re.compile(r"!\[\]\((?=data:|https?://)", re.IGNORECASE)


def cut(text: str, most: int, *, located: bool = False) -> tuple[list[str], list[str]]:
    """The texts around the first `most` pictures of `text`, one more than these, and what the pictures have for a URL.

    If they must be `located`, a link to anything but a URL, as to a file beside a document, is no picture.

    It takes time in proportion to the text: a regular expression for a whole link would begin anew behind every bracket
    that is open.
    """
    texts: list[str] = []
    urls: list[str] = []
    at = 0
    begins = _LOCATED if located else _ANY
    while len(urls) < most and (begin := begins.search(text, at)) and (end := text.find(END, begin.end())) >= 0:
        texts.append(text[at : begin.start()])
        urls.append(text[begin.end() : end])
        at = end + len(END)
    return [*texts, text[at:]], urls

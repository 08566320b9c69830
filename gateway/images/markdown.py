"""Pictures in a text, as TGI writes them: `![](https://…)` or `![](data:image/png;base64,…)`, without a description."""

from dataclasses import dataclass

BEGIN, END = "![](", ")"
SCHEMES = ("data:", "http://", "https://")


@dataclass(frozen=True)
class Link:
    """What stands between the brackets."""

    url: str

    @property
    def is_located(self) -> bool:
        """Whether it is a URL by which a picture may come, and not the name of a file in a document."""
        return self.url[:8].lower().startswith(SCHEMES)

    @property
    def written(self) -> str:
        return BEGIN + self.url + END


def pieces(text: str) -> list[str | Link]:
    """`text` cut at its pictures, which are links among the texts; neither begins nor ends are left out.

    It takes time in proportion to the text: a regular expression would begin anew behind every bracket that is open.
    """
    found: list[str | Link] = []
    at = 0
    while (begin := text.find(BEGIN, at)) >= 0 and (end := text.find(END, begin)) >= 0:
        found += [text[at:begin], Link(text[begin + len(BEGIN) : end])]
        at = end + 1
    return [*found, text[at:]]

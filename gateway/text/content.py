"""What a message says, as chat templates know it: a text, or a list of parts that are texts and images."""

from collections.abc import Sequence
from typing import Any

Part = dict[str, Any]
Content = str | list[Part]


def text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def image_part() -> Part:
    """A place for an image: templates write what stands for one there, and never see the image itself."""
    return {"type": "image"}


def in_parts(content: Content) -> list[Part]:
    return [text_part(content)] if isinstance(content, str) else content


def joined(separator: str, contents: Sequence[Content | None]) -> Content:
    """`contents` one behind the other, without those that are empty: a text if all are texts, else parts. In parts the
    separator stands between texts alone.
    """
    said = [each for each in contents if each]
    if all(isinstance(each, str) for each in said):
        return separator.join(map(str, said))
    parts: list[Part] = []
    for content in said:
        new = in_parts(content)
        if parts and parts[-1]["type"] == new[0]["type"] == "text":
            first = text_part(parts.pop()["text"] + separator + new[0]["text"])
            new = [first, *new[1:]]
        parts += new
    return parts


def has_images(content: Content | None) -> bool:
    return isinstance(content, list) and any(part["type"] == "image" for part in content)

"""A picture on its way: from where a request says it is, over what its file tells, to its place in the prompt."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gateway.errors import RequestError
from gateway.images.header import PictureHeader
from gateway.images.plan import Detail, PicturePlan
from gateway.images.prompt import Span
from gateway.text.model_text import Side

EMBEDDED = "data:application/octet-stream;base64,"


@dataclass(frozen=True)
class Source:
    """A picture that a request names.

    url: `data:`, http or https.
    field: where in the request it stands, for refusals.
    """

    url: str
    field: str
    detail: Detail = "auto"

    @classmethod
    def of_base64(cls, text: str, field: str) -> "Source":
        """One that is written as base64, or as a `data:` URL."""
        return cls(text if text[:5].lower() == "data:" else EMBEDDED + text, field)


@dataclass(frozen=True)
class Picture:
    """One whose file is known, and what of it the first bytes tell. It is not decoded."""

    field: str
    file: bytes
    header: PictureHeader
    plan: PicturePlan


@dataclass(frozen=True)
class Placed:
    """A picture in a prompt: the tokens from its first row to its last."""

    picture: Picture
    span: Span

    @property
    def end(self) -> int:
        return self.span.offset + self.span.length


@dataclass(frozen=True)
class ReadPrompt:
    """The ids of a prompt, and its pictures in the order in which they stand there."""

    ids: list[int]
    placed: tuple[Placed, ...] = ()

    def truncated(self, keep: int, cut: Side, field: str) -> "ReadPrompt":
        """At most `keep` ids, `cut` at that side. Raises RequestError if that cuts through a picture."""
        if keep >= len(self.ids):
            return self
        first = len(self.ids) - keep if cut == "left" else 0
        last = first + keep
        kept = [each for each in self.placed if each.span.offset < last and each.end > first]
        if any(each.span.offset < first or each.end > last for each in kept):
            raise RequestError.invalid(f"{field} {keep} cuts through an image of the prompt", field)
        moved = [replace(each, span=replace(each.span, offset=each.span.offset - first)) for each in kept]
        return ReadPrompt(self.ids[first:last], tuple(moved))


@contextmanager
def about(field: str) -> Iterator[None]:
    """What is wrong with a picture is said of the field where it stands. Raises RequestError for ValueError too."""
    try:
        yield
    except ValueError as error:
        raise RequestError.invalid(f"{field}: {error}", field) from None
    except RequestError as error:
        if error.param is None:
            error.message, error.param = f"{field}: {error.message}", field
        raise

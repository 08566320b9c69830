"""What a picture becomes in a prompt and in the tower, known from its width and height alone."""

from dataclasses import dataclass
from typing import Literal

from jaxengine.architecture.picture import PictureShape

Detail = Literal["auto", "low", "high"]
Piece = str | int  # a text of the prompt, or how many rows stand there, one after the other


@dataclass(frozen=True)
class PicturePlan:
    """How one picture is cut, and how the prompt words it. Data only: equal for equal sizes and details.

    `pieces` is what takes the place of the picture's placeholder: texts around and between its rows, and the lengths
    of the runs of rows, so ("<start>", 4, "<end>") is a start token, four rows and an end token. Ids are made of it by
    `gateway.images.prompt`, because a text in front of a picture may merge with the picture's own (Gemma 3's newlines).
    """

    shape: PictureShape
    pieces: tuple[Piece, ...]
    detail: Literal["low", "high"]  # what "auto" came to, and "low" where there is no such choice: "high"

    @property
    def runs(self) -> tuple[int, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, int))

    @property
    def rows(self) -> int:
        """Placeholder tokens, each of which is given a row of the tower's output."""
        return sum(self.runs)

"""What a request asks of its text: a grammar, and what stands before the text that the grammar is of."""

from dataclasses import dataclass
from typing import Literal, cast

Kind = Literal["json_schema", "regex", "lark", "gbnf"]


class GrammarError(Exception):
    """A grammar cannot be compiled, or its text cannot go on. The message is for the client.

    by_sender: whether the grammar is at fault, and not this engine.
    """

    def __init__(self, message: str, *, by_sender: bool = True) -> None:
        super().__init__(message)
        self.by_sender = by_sender


class TooCostly(GrammarError):
    """The grammar took more processor time for a text than its `Allowance`."""


@dataclass(frozen=True)
class Grammar:
    """`text` in the notation `kind`, see `Grammar` in `engine.proto`."""

    kind: Kind
    text: str
    behind_reasoning: bool = False  # newlines may come first

    def encoded(self) -> bytes:
        return f"{self.kind} {self.behind_reasoning:d}\n{self.text}".encode(errors="surrogatepass")

    @classmethod
    def decoded(cls, encoded: bytes) -> "Grammar":
        head, _, text = encoded.decode(errors="surrogatepass").partition("\n")
        kind, behind_reasoning = head.split()
        return cls(cast(Kind, kind), text, behind_reasoning == "1")


@dataclass(frozen=True)
class Reasoning:
    """The text begins with the ids `begin`, reasoning, and the ids `end`; see `Reasoning` in `engine.proto`.

    Raises:
        ValueError: it has no end, or `begin` has several ids: only one can be told from the answer's first.
    """

    begin: tuple[int, ...]
    end: tuple[int, ...]
    budget: int | None = None

    def __post_init__(self) -> None:
        if not self.end:
            raise ValueError("reasoning needs the ids of its end")
        if len(self.begin) > 1:
            raise ValueError(f"reasoning may begin with one id, not {len(self.begin)}")

"""How JSON is written, which a client may say besides its schema."""

from dataclasses import dataclass

from gateway.grammar import whitespace


@dataclass(frozen=True, slots=True)
class JsonStyle:
    """spaces: a regex of what may stand between two tokens, besides nothing.
    closed: objects get no properties but those that their schemas declare, or are refused if that cannot be.
    """

    spaces: str = whitespace.BOUNDED
    closed: bool = False


PLAIN = JsonStyle()
OF_TGI = JsonStyle(whitespace.ONE_SPACE)

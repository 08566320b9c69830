"""Texts of others, a server's say, as part of one line that a terminal or a table can show."""

SHOWN = 200  # characters


def one_line(text: str, longest: int = SHOWN) -> str:
    """Its beginning, with a space for each character that would move the cursor, or that is not seen."""
    shown = "".join(each if each.isprintable() else " " for each in text[:longest])
    return f"{shown}…" if len(text) > longest else shown


def readable(data: bytes) -> str:
    """What of a body fits into a line."""
    return one_line(data[: 4 * SHOWN].decode("utf-8", errors="replace"))

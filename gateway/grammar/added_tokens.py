"""The spellings of a tokenizer's added tokens, found in texts.

Not by a regex of all of them: some tokenizers have thousands that begin alike, each of which it would try at each such
character, for seconds in a text of some kilobytes.
"""

import re
from collections.abc import Iterable, Iterator


class AddedTokens:
    """Of two spellings that begin together, the longer counts."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self._spellings = frozenset(each for each in spellings if each)
        self._lengths = sorted({len(each) for each in self._spellings}, reverse=True)
        first = "".join(sorted({each[0] for each in self._spellings}))
        self._first = re.compile(f"[{re.escape(first)}]" if first else r"(?!)")

    def at(self, text: str, begin: int) -> str:
        """The spelling that `text` has at `begin`; "" if there is none."""
        parts = (text[begin : begin + length] for length in self._lengths)
        return next((part for part in parts if part in self._spellings), "")

    def within(self, text: str) -> Iterator[tuple[int, str]]:
        """Where spellings begin in `text`, one behind the other, and which they are."""
        end = 0
        while (found := self._first.search(text, end)) is not None:
            begin = found.start()
            spelling = self.at(text, begin)
            if spelling:
                yield begin, spelling
            end = begin + (len(spelling) or 1)

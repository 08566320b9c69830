"""Token ids to text, one id at a time.

A token may hold part of a character, and many tokenizers decode a token differently at the start of a text than inside
it. So the last tokens are decoded twice, with and without the new ones, and the difference is the new text. Text that
ends in U+FFFD, the sign of an incomplete character, is held back until later tokens complete it or the sequence ends:
the pieces together equal one decode of all ids.
"""

from collections.abc import Sequence

from gateway.text.tokenizer import Tokenizer

CONTEXT = 5  # prompt tokens decoded before the first new one, so that it gets its leading space
MAX_BYTES = 4  # of a character
MAX_PENDING = 32  # tokens held back at most: no character takes so many bytes, so their U+FFFD is shown


class Detokenizer:
    """The text of one growing sequence.

    visible: special tokens that stay in the text although others are skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: list[int],
        *,
        skip_special_tokens: bool,
        visible: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._visible = visible
        self._window = self._context(prompt)
        self._read = len(self._window)  # ids of the window whose text has been released
        self._released = self._decode(self._window)

    def push(self, id: int) -> str:
        """The text that `id` completes: "" while a character is incomplete, or if the id has no text."""
        if not self._shown(id):
            return ""
        self._window.append(id)
        text = self._decode(self._window)
        if text.endswith("\ufffd") and len(self._window) - self._read < MAX_PENDING:
            return ""
        return self._release(text)

    def flush(self, ids: Sequence[int] = ()) -> str:
        """The text of `ids`, the last ones, after what is still held back; U+FFFD for the character the end cut off.

        It equals what `push` of each would release, and decodes all of them at once.
        """
        self._window += [id for id in ids if self._shown(id)]
        return self._release(self._decode(self._window)) if self._read < len(self._window) else ""

    def _context(self, prompt: list[int]) -> list[int]:
        """The last ids of the prompt, from the start of a character on: from its middle they would decode to U+FFFD."""
        for length in range(CONTEXT, CONTEXT + MAX_BYTES):
            ids = [id for id in prompt[-length:] if self._shown(id)]
            if "\ufffd" not in self._decode(ids):
                break
        return ids

    def _release(self, text: str) -> str:
        piece = text[len(self._released) :]
        if piece:  # the next window starts with the tokens released last: enough context for a leading space
            self._window = self._window[self._read :]
            self._released = self._decode(self._window)
        self._read = len(self._window)
        return piece

    def _shown(self, id: int) -> bool:
        if self._skip_special and self._tokenizer.is_special(id) and id not in self._visible:
            return False
        return self._tokenizer.is_known(id)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

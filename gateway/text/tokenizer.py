"""The model's tokenizer, read from `tokenizer.json`: text to ids, ids to text, and the bytes of one id.

Only the `tokenizers` library is used: importing transformers takes seconds, and a gateway must listen within one. Ids
are exactly those of transformers' `AutoTokenizer` on the same directory. Text is decoded without
`clean_up_tokenization_spaces`, which guesses at spaces and so cannot be streamed. Limits on lengths belong to the
callers.
"""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """A token and its place in the text: `[start, stop)` in UTF-8 bytes; (0, 0) for added special tokens."""

    id: int
    text: str
    start: int
    stop: int


class Tokenizer:
    """Text to token ids and back. Safe to use from several threads."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._special = frozenset(id for id, token in added.items() if token.special)
        self._added = {id: token.content for id, token in added.items()}
        self.wrapping_ids = self._special.intersection(backend.encode("").ids)  # special tokens put around every text
        described = json.loads(backend.to_str())
        self._spelling = _Spelling(described["decoder"])
        vocabulary = described["model"]["vocab"]  # a dictionary of pieces, or Unigram's list of pairs
        pieces = (each if isinstance(each, str) else each[0] for each in vocabulary)
        self.longest = max(map(len, (*self._added.values(), *pieces)))  # characters of a token

    @classmethod
    def load(cls, directory: Path) -> "Tokenizer":
        """Read `directory/tokenizer.json`. Raises FileNotFoundError or ValueError, naming the file."""
        path = directory / "tokenizer.json"
        text = path.read_text(encoding="utf-8")
        try:
            return cls(tokenizers.Tokenizer.from_str(text))
        except Exception as error:  # the library raises bare Exception for every malformed file
            raise ValueError(f"{path.name}: not a readable tokenizer: {error}") from error

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        [ids] = self.encode_each([text], add_special_tokens=add_special_tokens)
        return ids

    def encode_each(self, texts: list[str], *, add_special_tokens: bool) -> list[list[int]]:
        # encode_batch releases the GIL, encode does not: 240 kB held it for 78 ms [tokenizers 0.23]
        encodings = self._backend.encode_batch(texts, add_special_tokens=add_special_tokens)
        return [list(encoding.ids) for encoding in encodings]

    def spans(self, text: str, *, add_special_tokens: bool = True) -> list[TokenSpan]:
        """Every token of `text` with its byte range."""
        [encoding] = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        byte_at = _byte_offsets(text)
        return [
            TokenSpan(id, text[start:stop], byte_at[start], byte_at[stop])
            for id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
        ]

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        """The text of `ids`. Ids the vocabulary lacks decode to nothing."""
        return str(self._backend.decode(ids, skip_special_tokens=skip_special_tokens))

    def decode_long(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        """As `decode`, but without the GIL, as `encode_each`: for long texts, in a thread."""
        [text] = self._backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        return str(text)

    @cached_property
    def marks(self) -> dict[str, int]:
        """The ids of the tokens that a grammar names as tokens, by spelling: special ones, and others like `<this>`."""
        spelled = {text: id for id, text in self._added.items()}
        return {text: id for text, id in spelled.items() if id in self._special or (text[:1], text[-1:]) == ("<", ">")}

    def is_special(self, id: int) -> bool:
        return id in self._special

    def special_id(self, text: str) -> int | None:
        """The id of the token that spells exactly `text`, if a grammar has to name it by its id.

        llguidance takes added tokens that are special, or spelled `<…>`, for no part of any text.
        """
        id = self._backend.token_to_id(text)
        if id not in self._added:
            return None
        return id if id in self._special or (text.startswith("<") and text.endswith(">")) else None

    @property
    def end(self) -> int:
        """One more than the highest id."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def is_known(self, id: int) -> bool:
        return self._backend.id_to_token(id) is not None

    def piece(self, id: int) -> str:
        """The vocabulary's spelling of a token (`Ġis`, `▁the`); "" for an unknown id."""
        return str(self._backend.id_to_token(id) or "")

    def token_bytes(self, id: int) -> bytes:
        """The exact UTF-8 bytes of a token inside a text; they may be part of a character."""
        if id in self._added:
            return self._added[id].encode()
        piece = self._backend.id_to_token(id)
        if piece is None:
            return b""
        exact = self._spelling.bytes_of(piece)
        return exact if exact is not None else self.decode([id], skip_special_tokens=False).encode()

    def token_text(self, id: int) -> str:
        """`token_bytes` as text, with U+FFFD for what is no whole character."""
        return self.token_bytes(id).decode("utf-8", errors="replace")


class _Spelling:
    """How the vocabulary spells bytes: in GPT-2's alphabet, or with `▁` for a space and `<0x0A>` for a byte."""

    def __init__(self, decoder: dict[str, Any] | None) -> None:
        steps = _decoder_steps(decoder)
        kinds = {step.get("type") for step in steps}
        self._alphabet = _byte_level_alphabet() if "ByteLevel" in kinds else None
        self._byte_fallback = "ByteFallback" in kinds
        self._space = _space_marker(steps)

    def bytes_of(self, piece: str) -> bytes | None:
        """The bytes of a vocabulary's `piece`; None if only the decoder knows them."""
        if self._alphabet is not None:
            spelled = [self._alphabet.get(character) for character in piece]
            return None if None in spelled else bytes(byte for byte in spelled if byte is not None)
        if self._byte_fallback and (byte := _BYTE_PIECE.fullmatch(piece)):
            return bytes.fromhex(byte[1])
        return piece.replace(self._space, " ").encode() if self._space else None


def _decoder_steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder.get("type") == "Sequence" else [decoder]


def _space_marker(steps: list[dict[str, Any]]) -> str | None:
    for step in steps:
        if step.get("type") == "Metaspace":
            return str(step["replacement"])
        if step.get("type") == "Replace" and step.get("content") == " ":
            return str(step["pattern"].get("String", "")) or None
    return None


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's one-to-one map of characters to bytes: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _byte_offsets(text: str) -> list[int]:
    """Byte position of every character boundary of `text`: `len(text) + 1` numbers."""
    offsets = [0]
    for character in text:
        offsets.append(offsets[-1] + len(character.encode()))
    return offsets

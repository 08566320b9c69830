"""Logprobs in OpenAI's two layouts: one entry for each generated token that `token_ids` and `usage` count.

So the token that ends the text has an entry, and each token of a stop string, though the text shows neither. An entry
is sent as soon as its token is generated, even if its text is held back because a stop string may have begun. The -inf
of a masked token is written as -9999, because JSON has no infinity.
"""

import codecs
import math
from collections.abc import Sequence
from typing import Any

from gateway.http.encoding import short_float
from gateway.request.output import TokenText
from gateway.text.tokenizer import Tokenizer
from jaxengine.rpc import engine_pb2 as pb

MASKED = -9999.0


class TokenNames:
    """The names of tokens in the logprobs of one request."""

    def __init__(self, tokenizer: Tokenizer, *, by_id: bool) -> None:
        self._tokenizer, self._by_id = tokenizer, by_id

    def shown(self, id: int) -> str:
        """The token's text, with U+FFFD for bytes that are no whole character: the entry lists the exact bytes too."""
        return f"token_id:{id}" if self._by_id else self._tokenizer.token_text(id)

    def exact(self, id: int) -> str:
        """The token's text, or `bytes:\\xe2\\x80` if it is no whole character: keys must tell such tokens apart."""
        if self._by_id:
            return f"token_id:{id}"
        exact = self.bytes(id)
        try:
            return exact.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in exact)

    def bytes(self, id: int) -> bytes:
        return self._tokenizer.token_bytes(id)


def chat_logprobs(names: TokenNames, tokens: list[TokenText], top: int) -> dict[str, Any]:
    """`{"content": [{token, logprob, bytes, top_logprobs}]}`."""
    content = [
        _entry(names, token) | {"top_logprobs": [_entry(names, each) for each in token.top[:top]]} for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(names: TokenNames, token: TokenText | pb.Alternative) -> dict[str, Any]:
    return {
        "token": names.shown(token.id),
        "logprob": _number(token.logprob),
        "bytes": list(names.bytes(token.id)),
    }


def completion_logprobs(
    names: TokenNames, tokens: Sequence[TokenText | pb.Token], offsets: list[int], top: int
) -> dict[str, Any]:
    """`{tokens, token_logprobs, top_logprobs, text_offset}`; the prompt's first token has no logprob."""
    return {
        "tokens": [names.exact(token.id) for token in tokens],
        "token_logprobs": [None if math.isnan(token.logprob) else _number(token.logprob) for token in tokens],
        "top_logprobs": [None if math.isnan(token.logprob) else _alternatives(names, token, top) for token in tokens],
        "text_offset": offsets,
    }


def _alternatives(names: TokenNames, token: TokenText | pb.Token, top: int) -> dict[str, float]:
    """Logprobs by text: of the token itself, then of the `top` likeliest by rank. Of ids with one text the likeliest
    counts.
    """
    found: dict[str, float] = {}
    for each in (token, *token.top[:top]):
        name = names.exact(each.id)
        found[name] = max(_number(each.logprob), found.get(name, MASKED))
    return found


def prompt_logprobs(tokenizer: Tokenizer, tokens: Sequence[pb.Token], top: int) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: for each prompt token logprob and rank of it and of the `top` likeliest, by id."""
    return [None if math.isnan(token.logprob) else _ranked(tokenizer, token, top) for token in tokens]


def _ranked(tokenizer: Tokenizer, token: pb.Token, top: int) -> dict[str, Any]:
    ranks = {token.id: token.rank} | {each.id: rank for rank, each in enumerate(token.top[:top], 1)}
    shown = {token.id: token.logprob} | {each.id: each.logprob for each in token.top[:top]}
    return {
        str(id): {"logprob": _number(logprob), "rank": ranks[id], "decoded_token": tokenizer.token_text(id)}
        for id, logprob in shown.items()
    }


def prompt_offsets(tokenizer: Tokenizer, tokens: Sequence[pb.Token], echo: str) -> list[int]:
    """Where each prompt token starts in `echo`, in characters.

    Special tokens, and the space that a SentencePiece tokenizer puts before a text, count as empty if the echo does not
    show them.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be spread over tokens
    offsets, end = [], 0
    for token in tokens:
        exact, special = tokenizer.token_bytes(token.id), tokenizer.is_special(token.id)
        if special:
            end += len(decoder.decode(b"", final=True))
        offsets.append(end)
        text = decoder.decode(exact)
        if special:
            text = text if echo.startswith(text, end) else ""
        elif text.startswith(" ") and not echo.startswith(" ", end):
            text = text[1:]
        end += len(text)
    return offsets


def _number(logprob: float) -> float:
    return short_float(logprob) if math.isfinite(logprob) else MASKED

"""Logprobs in OpenAI's two layouts: one entry for each generated token, as `token_ids` and `usage` count them.

So the token that ended the text is listed, and the one a stop string cut, with nothing of them in the text; and an
entry is sent when its token is made, while a possible stop string may still hold back the text. A masked token's -inf
is written as -9999, JSON having no infinity.
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


class Names:
    """How tokens are called in the logprobs of one request."""

    def __init__(self, tokenizer: Tokenizer, *, by_id: bool) -> None:
        self._tokenizer, self._by_id = tokenizer, by_id

    def shown(self, id: int) -> str:
        """Its text, U+FFFD for what is not a whole character: the exact bytes stand beside it."""
        return f"token_id:{id}" if self._by_id else self._tokenizer.token_text(id)

    def exact(self, id: int) -> str:
        """Its text, or `bytes:\\xe2\\x80` where it is not whole characters: a key must tell such tokens apart."""
        if self._by_id:
            return f"token_id:{id}"
        exact = self.bytes(id)
        try:
            return exact.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in exact)

    def bytes(self, id: int) -> bytes:
        return self._tokenizer.token_bytes(id)


def chat_logprobs(names: Names, tokens: list[TokenText], top: int) -> dict[str, Any]:
    """`{"content": [{token, logprob, bytes, top_logprobs}]}`."""
    content = [
        _entry(names, token) | {"top_logprobs": [_entry(names, each) for each in token.top[:top]]} for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(names: Names, token: TokenText | pb.Alternative) -> dict[str, Any]:
    return {
        "token": names.shown(token.id),
        "logprob": _number(token.logprob),
        "bytes": list(names.bytes(token.id)),
    }


def completion_logprobs(
    names: Names, tokens: Sequence[TokenText | pb.Token], offsets: list[int], top: int
) -> dict[str, Any]:
    """`{tokens, token_logprobs, top_logprobs, text_offset}`; the prompt's first token has no logprob."""
    return {
        "tokens": [names.exact(token.id) for token in tokens],
        "token_logprobs": [None if math.isnan(token.logprob) else _number(token.logprob) for token in tokens],
        "top_logprobs": [None if math.isnan(token.logprob) else _alternatives(names, token, top) for token in tokens],
        "text_offset": offsets,
    }


def _alternatives(names: Names, token: TokenText | pb.Token, top: int) -> dict[str, float]:
    """Text to logprob: the token itself, then the `top` likeliest by rank; of one text the likeliest id counts."""
    found: dict[str, float] = {}
    for each in (token, *token.top[:top]):
        name = names.exact(each.id)
        found[name] = max(_number(each.logprob), found.get(name, MASKED))
    return found


def prompt_logprobs(tokenizer: Tokenizer, tokens: Sequence[pb.Token], top: int) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: per prompt token its logprob and rank and the `top` likeliest ones', by id."""
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

    What a tokenizer puts before a text takes no room where the echo does not show it: special tokens, and the space
    of those of the SentencePiece kind.
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

"""Logprobs in OpenAI's two layouts.

Only tokens that are part of the answer's text are listed: not the token that ended it, nor what a stop string cut
off. A masked token's -inf is written as -9999, JSON having no infinity.
"""

import codecs
import math
from collections.abc import Sequence
from typing import Any

from gateway.generation import Finish, Step, TokenText, Transcript
from gateway.tokenizer import Tokenizer
from gateway.wire import short_float
from jaxengine.rpc import engine_pb2 as pb

MASKED = -9999.0


class VisibleTokens:
    """Tokens of one choice, let out together with their text, which a possible stop string may hold back."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._waiting: list[TokenText] = []

    def take(self, step: Step) -> list[TokenText]:
        """The tokens whose text has been released by now and was not before."""
        self._waiting += step.tokens
        finish, released = step.finish, self._transcript.released
        if finish in (Finish.EOS, Finish.STOP_TOKEN) and not self._transcript.manner.show_end:
            self._waiting.pop()
        if finish is not None and finish is not Finish.STOP:
            out, self._waiting = self._waiting, []
            return out
        count = sum(token.start < released for token in self._waiting)
        out, self._waiting = self._waiting[:count], self._waiting[count:]
        return out


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
    """Text to logprob, most likely first; the token itself is always among them.

    Of two ids with the same text the likelier one counts.
    """
    found: dict[str, float] = {}
    for each in (*token.top[:top], token):
        found.setdefault(names.exact(each.id), _number(each.logprob))
    return found


def prompt_logprobs(tokenizer: Tokenizer, tokens: Sequence[pb.Token], top: int) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: per prompt token its logprob and rank and the `top` likeliest ones', by id."""
    return [None if math.isnan(token.logprob) else _ranked(tokenizer, token, top) for token in tokens]


def _ranked(tokenizer: Tokenizer, token: pb.Token, top: int) -> dict[str, Any]:
    ranks = {each.id: rank for rank, each in enumerate(token.top[:top], 1)} | {token.id: token.rank}
    shown = {each.id: each.logprob for each in token.top[:top]} | {token.id: token.logprob}
    return {
        str(id): {"logprob": _number(logprob), "rank": ranks[id], "decoded_token": tokenizer.token_text(id)}
        for id, logprob in shown.items()
    }


def prompt_offsets(tokenizer: Tokenizer, tokens: Sequence[pb.Token], echo: str) -> list[int]:
    """Where each prompt token starts in `echo`, in characters; special tokens take no room in it.

    Tokenizers of the SentencePiece kind put a space before the text, which the echo does not have.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be spread over tokens
    offsets, text = [], ""
    for token in tokens:
        offsets.append(len(text))
        text += "" if tokenizer.is_special(token.id) else decoder.decode(tokenizer.token_bytes(token.id))
    added = text.startswith(" ") and not echo.startswith(" ")
    return [max(0, offset - added) for offset in offsets]


def _number(logprob: float) -> float:
    return short_float(logprob) if math.isfinite(logprob) else MASKED

"""llguidance over a vocabulary of single bytes: whether a grammar as the gateway sends it allows a text."""

from llguidance import LLMatcher, LLTokenizer

from jaxengine.grammar.grammar import Grammar
from jaxengine.grammar.source import library_text
from jaxengine.rpc import engine_pb2 as pb

TOKENIZER = LLTokenizer("byte")


class Refused(Exception):
    """llguidance does not compile the grammar."""


def allows(grammar: pb.Grammar, text: str | list[int]) -> bool:
    """Whether the whole of `text`, or its ids, may be written. Raises Refused, or ValueError for a wrong notation."""
    kind = grammar.WhichOneof("kind")
    assert kind is not None
    matcher = LLMatcher(TOKENIZER, library_text(Grammar(kind, getattr(grammar, kind))), log_level=0)
    if matcher.is_error():
        raise Refused(matcher.get_error())
    ids = list(text.encode()) if isinstance(text, str) else text
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

"""A model's vocabulary as llguidance reads it: the bytes of each id, and which ids end a text."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from llguidance import LLTokenizer, TokenizerWrapper

METASPACE = "▁"


def load_tokenizer(directory: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """The tokenizer in `directory/tokenizer.json`.

    It holds the GIL for as long as it reads the file: 0.3 s for 49,152 ids, 2.7 s for 262,144 (llguidance 1.9.1).

    Args:
        vocab_size: of the model's logits. Ids that the file lacks are never allowed.
        eos_token_ids: all of them: one that is missing here could not be sampled under a grammar.

    Raises:
        ValueError: there are no `eos_token_ids`, or the file is missing or spells its vocabulary in an unknown way.
    """
    if not eos_token_ids:
        raise ValueError("the model has no token that ends a text")
    path = directory / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"the model has no {path.name}") from error
    backend = tokenizers.Tokenizer.from_str(text)
    size, ends = max(vocab_size, 1 + max(backend.get_vocab().values())), list(eos_token_ids)
    with contextlib.suppress(ValueError):  # it knows byte-level vocabularies and those that spell bytes as <0x0A>
        return LLTokenizer(text, n_vocab=size, eos_token=ends)
    if METASPACE not in json.dumps(json.loads(text)["decoder"], ensure_ascii=False):
        raise ValueError(f"{path.name} spells its vocabulary in a way that grammars cannot read")
    return LLTokenizer(TokenizerWrapper(_Pieces(backend, ends[0])), n_vocab=size, eos_token=ends)


class _Pieces:
    """A vocabulary of whole characters, as T5's: what `TokenizerWrapper` asks for."""

    bos_token_id = None

    def __init__(self, backend: tokenizers.Tokenizer, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.special_token_ids = [id for id, token in backend.get_added_tokens_decoder().items() if token.special]
        pieces = [backend.id_to_token(id) or "" for id in range(backend.get_vocab_size())]
        self.tokens = [piece.replace(METASPACE, " ").encode() for piece in pieces]
        self._backend = backend

    def __call__(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

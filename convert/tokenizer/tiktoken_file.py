"""Kimi's and Moonlight's tokenizer: byte pairs in a file as tiktoken has them, `tiktoken.model`.

The code that comes with these checkpoints is never run. All that it knows besides the file is how a text is split, and
that behind the pairs come 256 special tokens, which `tokenizer_config.json` names or which are reserved.
Source: tokenization_kimi.py of https://huggingface.co/moonshotai/Kimi-K2-Instruct
"""

import base64
import binascii
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from convert.config.config import read_json
from convert.errors import CheckpointError
from convert.formats.gguf_splits import KIMI_SPLIT

NAME = "tiktoken.model"
CLASS = "TikTokenTokenizer"
SPECIAL = 256


def read(directory: Path) -> Tokenizer:
    """Raises CheckpointError: the file is malformed, or is of a tokenizer that splits texts in a way of its own."""
    settings = read_json(directory / "tokenizer_config.json")
    if settings.get("tokenizer_class") != CLASS:
        found = settings.get("tokenizer_class")
        raise CheckpointError(f"{directory}: {NAME} is of tokenizer_class {found!r}, only {CLASS} is known")
    ranks = _ranks(directory / NAME)
    tokenizer: Tokenizer = _converter(ranks).converted()
    tokenizer.add_tokens(_special_tokens(settings, len(ranks), directory))
    return tokenizer


def _converter(ranks: dict[bytes, int]) -> Any:
    """transformers' converter, which reads files by a package of its own otherwise."""
    from transformers.convert_slow_tokenizer import TikTokenConverter

    converter = TikTokenConverter(NAME, pattern=KIMI_SPLIT)
    converter.load_tiktoken_bpe = lambda _: ranks
    return converter


def _ranks(path: Path) -> dict[bytes, int]:
    """Lines of a token in base64 and its id, in order of ids."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n")):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise CheckpointError.by(error, path, f"line {number + 1} is no token and its id") from error
    if [*ranks.values()] != [*range(len(ranks))]:
        raise CheckpointError(f"{path}: its ids are not 0, 1, 2, … in this order")
    missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if missing is not None:
        raise CheckpointError(f"{path}: has no token for the byte {missing}")
    return ranks


def _special_tokens(settings: dict[str, Any], first: int, directory: Path) -> list[AddedToken]:
    named = settings.get("added_tokens_decoder")
    named = named if isinstance(named, dict) else {}
    return [_special_token(named.get(str(id)), id, directory) for id in range(first, first + SPECIAL)]


def _special_token(named: object, id: int, directory: Path) -> AddedToken:
    if named is None:
        return AddedToken(f"<|reserved_token_{id}|>", normalized=False, special=True)
    content = named.get("content") if isinstance(named, dict) else None
    if not isinstance(named, dict) or not isinstance(content, str) or not content:
        path = directory / "tokenizer_config.json"
        raise CheckpointError(f"{path}: added_tokens_decoder has no content for the id {id}")
    return AddedToken(content, normalized=False, special=named.get("special") is not False)

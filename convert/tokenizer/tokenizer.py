"""The tokenizer, as far as the engine needs it: that it fits the model, and which ids end a text.

Encoding and decoding are the gateway's work. A tokenizer with ids beyond the embedding is refused at start, because on
a device such an id would silently read another row.
"""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from convert.config.config import read_json
from convert.errors import CheckpointError
from convert.formats.lfs_pointer import PROBLEM, is_pointer

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "generation_config.json",
)
# Of a model that sees: how its pictures become patches, and how prompts word them.
PICTURE_FILES = ("config.json", "preprocessor_config.json", "processor_config.json")


def gateway_files(sees: bool) -> tuple[str, ...]:
    """The files of a checkpoint that are read where text is made ids: the tokenizer's, and those about pictures."""
    return (*TOKENIZER_FILES, *PICTURE_FILES) if sees else TOKENIZER_FILES


def check_tokenizer(directory: Path, vocab_size: int) -> tuple[Tokenizer, int]:
    """The tokenizer of `directory`, and the number of its ids.

    An embedding often has more rows, to be divisible by 64 or so; those rows are no tokens.

    Raises:
        CheckpointError: there is no tokenizer, or it is malformed, or has an id beyond `vocab_size`.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{directory}: no tokenizer.json, and {_lacking(directory)}")
    if is_pointer(path):
        raise CheckpointError(f"{path}: {PROBLEM}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every malformed file
        raise CheckpointError(f"{path}: not a tokenizer: {error}") from error
    token, highest = max(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1], default=("", 0))
    if highest >= vocab_size:
        raise CheckpointError(f"{path}: token {token!r} has id {highest}, the model's vocabulary is {vocab_size}")
    return tokenizer, highest + 1


def _lacking(directory: Path) -> str:
    """Why there is nothing to make a tokenizer.json of: it may be code."""
    settings = directory / "tokenizer_config.json"
    if settings.is_file() and "auto_map" in read_json(settings):
        return "code of the checkpoint's own is never run: convert its tokenizer, and put tokenizer.json there"
    return "nothing to make one of"


def end_of_text_ids(directory: Path, tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    """Every id that ends a text: the union of generation_config, config, its text part, and the tokenizer's eos token.

    Llama 3 chat models name three, and only in generation_config. An engine that knew one of them alone would run past
    the end of answers.
    """
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.is_file():
            values = read_json(path)
            text = values.get("text_config")
            for each in (values, text if isinstance(text, dict) else {}):
                ids |= _ids(each.get("eos_token_id"), path, vocab_size)
    token = _eos_token(directory / "tokenizer_config.json") or _eos_token(directory / "special_tokens_map.json")
    known = None if token is None else tokenizer.token_to_id(token)
    return tuple(sorted(ids if known is None else ids | {known}))


def _ids(value: Any, path: Path, vocab_size: int) -> set[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for id in ids:
        if type(id) is not int or not -1 <= id < vocab_size:
            raise CheckpointError(f"{path}: eos_token_id must be below the vocabulary's {vocab_size}, got {id!r}")
    return {id for id in ids if id >= 0}  # -1: an old way to say "none"


def _eos_token(path: Path) -> str | None:
    token = read_json(path).get("eos_token") if path.is_file() else None
    if isinstance(token, dict):  # a serialised AddedToken
        token = token.get("content")
    return token if isinstance(token, str) else None

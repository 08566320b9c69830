"""Whether one model can draft for another: an id must mean the same to both, so they have the same tokens.

Heads of different widths are no difference: rows behind the last token are padding.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from convert.errors import CheckpointError

FILE = "tokenizer.json"


def check_same_tokens(draft: Path, model: Path) -> None:
    """Compare the tokenizers in two directories, which have one each: every token's id, also of those that were added,
    and where both are made by merges, these.

    Raises:
        CheckpointError: they differ; the message names both files and what differs first.
    """
    ours, theirs = draft / FILE, model / FILE
    if ours.read_bytes() == theirs.read_bytes():
        return
    if problem := _difference(_ids(ours), _ids(theirs), theirs):
        raise CheckpointError(f"{ours}: {problem}; a draft model must have the tokens of the model")
    if (merges := _merges(ours)) and (others := _merges(theirs)) and merges != others:
        message = f"{ours}: its merges are not those of {theirs}; a draft model must have the tokenizer of the model"
        raise CheckpointError(message)


def _difference(ids: Mapping[str, int], others: Mapping[str, int], file: Path) -> str:
    """The first token of `file` or of our own that has another id in the other; "" if there is none."""
    for token, id in sorted(others.items(), key=lambda item: item[1]):
        if token not in ids:
            return f"has no token {token!r}, which is {id} in {file}"
        if ids[token] != id:
            return f"token {token!r} is {ids[token]}, and {id} in {file}"
    added = min((id, token) for token, id in ids.items() if token not in others) if len(ids) > len(others) else None
    return f"token {added[1]!r} is {added[0]}, and none in {file}" if added else ""


def _ids(file: Path) -> dict[str, int]:
    return Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)


def _merges(file: Path) -> list[tuple[str, ...]]:
    """Pairs in order. Older files write each as one string."""
    merges = json.loads(file.read_bytes())["model"].get("merges") or []
    return [tuple(each.split(" ")) if isinstance(each, str) else tuple(each) for each in merges]

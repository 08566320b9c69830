"""What a checkpoint asks of a search through answers. None is made here: it is told at start, lest answers differ in
silence from those of transformers' `generate`."""

from collections.abc import Mapping
from typing import Any

from convert.announce import announce

UNREAD: Mapping[str, Any] = {  # and the value that asks for nothing, beside null
    "num_beams": 1,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "forced_bos_token_id": None,
    "bad_words_ids": None,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "penalty_alpha": 0,
}


def announce_unread(values: Mapping[str, Any], where: str) -> None:
    """One line for what `values`, a configuration of generation, asks for in vain."""
    asked = [f"{key} {str(values[key])[:50]}" for key, none in UNREAD.items() if values.get(key) not in (None, none)]
    if asked:
        announce(f"{where}: not read: {', '.join(asked)}; requests say how they sample")

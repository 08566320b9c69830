"""Settings of a generation configuration that this server does not read, such as beam search and forced tokens.

transformers' `generate` follows them. They are announced at start, so that nobody wonders why answers differ.
"""

from collections.abc import Mapping
from typing import Any

from convert.announce import announce

UNREAD: Mapping[str, Any] = {  # with the value that has no effect; null has none either
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
    """Announce in one line the settings of `values`, a generation configuration, that are not read."""
    asked = [f"{key} {str(values[key])[:50]}" for key, none in UNREAD.items() if values.get(key) not in (None, none)]
    if asked:
        announce(f"{where}: not read: {', '.join(asked)}; requests say how they sample")

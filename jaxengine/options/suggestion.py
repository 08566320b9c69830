"""What somebody may have meant who wrote a name that there is not."""

import difflib
from collections.abc import Iterable

CUTOFF = 0.6  # of difflib's ratio: half of the letters may be wrong, and `bf16` still finds `bfloat16`


def suggestion(word: str, known: Iterable[str]) -> str:
    """` (did you mean X?)` for the nearest of the names `known`, whatever its case and dashes; "" if none is near."""
    plain = {_plain(name): name for name in known}
    near = difflib.get_close_matches(_plain(word), plain, 1, CUTOFF)
    return f" (did you mean {plain[near[0]]}?)" if near else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")

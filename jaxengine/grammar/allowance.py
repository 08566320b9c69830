"""The processor time that the grammar of one text may take, so that whoever asks for a costly one pays for it alone.

llguidance makes its lexer's states when a text needs them. So a grammar that was cheap while it was tried may take 200
ms for one mask later, within all its limits, and every row of that step waits.
"""

import time
from types import TracebackType

# Of 573 published schemas the costliest text needed 0.6 ms beyond these 1 ms for each of its tokens, and objects with
# 300 optional properties 2 ms (49,152 ids, llguidance 1.9.1).
PER_TOKEN = 0.001  # seconds of CPU time
SAVED = 0.1  # seconds that may be saved up, and which a text has at its beginning


class Allowance:
    """Of one text. Time within `with` is taken from it, on whichever thread."""

    def __init__(self) -> None:
        self._left = SAVED
        self._began = 0.0

    @property
    def exceeded(self) -> bool:
        return self._left < 0

    def earn(self) -> None:
        """For another token."""
        self._left = min(SAVED, self._left + PER_TOKEN)

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left -= time.thread_time() - self._began

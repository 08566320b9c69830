"""Prompts that are made before they are asked for: with a tokenizer one takes longer than a server's chunk may wait."""

import threading
from collections import deque
from collections.abc import Iterator

from gateway.benchmark.prompt import Prompt


class Ahead:
    """The prompts of `source`, in their order, made by a thread of their own, which ends with `close`."""

    def __init__(self, source: Iterator[Prompt]) -> None:
        self._source, self._made = source, deque[Prompt]()
        self._wanted, self._closed = 1, False
        self._error: Exception | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._make, daemon=True).start()

    def fill(self, wanted: int) -> None:
        """Wait until so many are made, or until `close`; so many are kept ahead from then on.

        Raises what `source` raises.
        """
        with self._changed:
            self._wanted = wanted
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error or self._closed or len(self._made) >= wanted)
            if self._error is not None:
                raise self._error

    def __iter__(self) -> "Ahead":
        return self

    def __next__(self) -> Prompt:
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._made)
            if not self._made:
                assert self._error is not None
                raise self._error
            self._changed.notify_all()
            return self._made.popleft()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _make(self) -> None:
        while self._is_wanted():
            try:
                prompt = next(self._source)
            except Exception as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._made.append(prompt)
                self._changed.notify_all()

    def _is_wanted(self) -> bool:
        """Wait until one more is. False: none is any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._made) < self._wanted)
            return not self._closed

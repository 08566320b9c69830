"""Bars while a model is loaded: bytes of its weights, then steps that are compiled."""

from typing import Any

from tqdm.auto import tqdm

from jaxengine.request.interface import LOADING


class LoadBars:
    """A context; `show` is the `progress` of `load_engine`."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._topic = ""
        self._bar: Any = None

    def show(self, what: str, done: int, total: int) -> None:
        if what != self._topic:
            self._close()
            self._topic = what
            form = {"unit": "B", "unit_scale": True} if what == LOADING else {"unit": " steps"}
            self._bar = tqdm(total=total, desc=what, disable=not self._shown, **form)
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> "LoadBars":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()

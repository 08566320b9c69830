"""Prompts that are made ahead: by another thread, in their order, and no more of them than are wanted."""

import itertools
import threading
from collections.abc import Iterator

import pytest

from gateway.benchmark.ahead import Ahead
from gateway.benchmark.prompt import Prompt


class Source:
    """Prompts 0, 1, 2 …; `makers` are the threads that made them."""

    def __init__(self, end: int | None = None) -> None:
        self._numbers = itertools.count() if end is None else iter(range(end))
        self.made = 0
        self.makers: set[int] = set()

    def __iter__(self) -> Iterator[Prompt]:
        return self

    def __next__(self) -> Prompt:
        self.makers.add(threading.get_ident())
        number = next(self._numbers, None)
        if number is None:
            raise RuntimeError("broken")
        self.made += 1
        return Prompt(str(number))


def test_prompts_come_in_their_order_and_are_made_elsewhere() -> None:
    source = Source()
    ahead = Ahead(source)
    ahead.fill(5)
    assert source.made >= 5, "before the first is asked for"
    assert [next(ahead).text for _ in range(50)] == [str(number) for number in range(50)]
    ahead.close()
    assert threading.get_ident() not in source.makers
    assert source.made <= 50 + 5


def test_nobody_waits_for_what_is_made_no_more() -> None:
    """As after Ctrl-C, while a run's prompts are made: the process would not end."""
    going_on = threading.Event()

    def slowly() -> Iterator[Prompt]:
        while going_on.wait():
            yield Prompt("hello")

    ahead = Ahead(slowly())
    waiting = threading.Thread(target=ahead.fill, args=(1000,), daemon=True)
    waiting.start()
    ahead.close()
    going_on.set()
    waiting.join(20)
    assert not waiting.is_alive()


def test_what_goes_wrong_is_raised_where_prompts_are_asked_for() -> None:
    ahead = Ahead(Source(end=2))
    assert [next(ahead).text, next(ahead).text] == ["0", "1"]
    with pytest.raises(RuntimeError, match="broken"):
        next(ahead)
    with pytest.raises(RuntimeError, match="broken"):
        ahead.fill(1)

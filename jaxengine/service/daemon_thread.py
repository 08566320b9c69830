"""Work beside the event loop that cannot delay the end of the process: an executor's threads would be waited for."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def in_daemon_thread(name: str, work: Callable[[], T]) -> "asyncio.Future[T]":
    """Do `work` on a thread called `name`; its result or exception, for the running event loop."""
    event_loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = event_loop.create_future()

    def settle(set_outcome: Callable[[Any], None], value: Any) -> None:
        if not outcome.done():  # else its reader was cancelled
            set_outcome(value)

    def run() -> None:
        try:
            ending: tuple[Callable[[Any], None], Any] = (outcome.set_result, work())
        except BaseException as error:
            ending = (outcome.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the event loop is closed: the process is ending
            event_loop.call_soon_threadsafe(settle, *ending)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome

"""The one thread that drives an engine: wait for work, step, pass on what happened.

Everything it learns leaves through `publish`, called from this thread once per step, and once per heartbeat when there
is nothing to step. A thread that is stuck inside a step therefore falls silent, which is how the gateway tells.
It knows nothing of sessions or gRPC, and it never blocks on whoever listens.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from jaxengine.request.interface import DrivenEngine, Stats, StepResult
from jaxengine.request.sequence import Request

HEARTBEAT_SECONDS = 0.5


@dataclass(frozen=True)
class Report:
    """What the loop has to say: `result` is None in a heartbeat."""

    stats: Stats
    result: StepResult | None


class StepLoop:
    """Runs `engine.step` on a thread of its own between `start` and `stop`.

    Args:
        publish: receives every report; must return at once.
        crashed: receives what escaped a step, after which the loop is over.
    """

    def __init__(
        self, engine: DrivenEngine, publish: Callable[[Report], None], crashed: Callable[[BaseException], None]
    ) -> None:
        self._engine = engine
        self._publish = publish
        self._crashed = crashed
        self._wake = threading.Event()
        self._stopping = False
        self._last_report = 0.0
        self._thread = threading.Thread(target=self._run, name="engine-steps", daemon=True)

    @property
    def silence(self) -> float:
        """Seconds since the last report."""
        return time.monotonic() - self._last_report

    def start(self) -> None:
        self._last_report = time.monotonic()
        self._thread.start()

    def is_queued(self, request_id: int) -> bool:
        """From any thread: whether no step has taken it up yet."""
        return self._engine.is_queued(request_id)

    def submit(self, request: Request) -> None:
        """From any thread. Raises ValueError if the engine cannot ever serve it."""
        self._engine.submit(request)
        self._wake.set()

    def cancel(self, request_id: int) -> None:
        """From any thread; idempotent."""
        self._engine.cancel(request_id)
        self._wake.set()

    def stop(self, timeout: float) -> bool:
        """End the loop after the step it is in; whether it ended in time."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:
            self._crashed(error)

    def _turn(self) -> None:
        # Cleared before the step: work that arrives during it sets the flag again, so none is slept over.
        self._wake.clear()
        result = self._engine.step()
        silence = self.silence
        if result is not None:
            self._report(result)
        elif silence >= HEARTBEAT_SECONDS:
            self._report(None)
        elif self._engine.idle:
            self._wake.wait(HEARTBEAT_SECONDS - silence)

    def _report(self, result: StepResult | None) -> None:
        self._last_report = time.monotonic()
        self._publish(Report(self._engine.stats(), result))

"""The thread that drives an engine: wait for work, step, report what happened.

Everything that the loop learns goes to its listener: one report per step, and one per heartbeat when there is nothing
to step. A thread that is stuck inside a step reports nothing, which is how the gateway notices. The loop knows nothing
of sessions or gRPC, and it never blocks on its listener.
"""

import threading
import time
from dataclasses import dataclass
from typing import Protocol

from jaxengine.request.interface import DrivenEngine, Stats, StepResult
from jaxengine.request.sequence import Request

HEARTBEAT_SECONDS = 0.5


@dataclass(frozen=True)
class Report:
    """The engine's state after a step. `result` is None in a heartbeat."""

    stats: Stats
    result: StepResult | None


class StepListener(Protocol):
    """Is told what the loop does, on the loop's thread. Both methods must return at once."""

    def on_report(self, report: Report) -> None:
        """A step has run, or a heartbeat is due."""
        ...

    def on_crash(self, error: BaseException) -> None:
        """`error` escaped a step: the loop is over."""
        ...


class StepLoop:
    """Runs `engine.step` on a thread of its own between `start` and `stop`."""

    def __init__(self, engine: DrivenEngine, listener: StepListener) -> None:
        self._engine = engine
        self._listener = listener
        self._wake = threading.Event()
        engine.notify(self._wake.set)
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
        """From any thread: whether no step has scheduled the request yet."""
        return self._engine.is_queued(request_id)

    def submit(self, request: Request) -> None:
        """From any thread. Raises ValueError if the engine can never serve the request."""
        self._engine.submit(request)

    def cancel(self, request_id: int) -> None:
        """From any thread; idempotent."""
        self._engine.cancel(request_id)

    def stop(self, timeout: float) -> bool:
        """End the loop after the step that is running; whether it ended within `timeout` seconds."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as error:
            self._listener.on_crash(error)

    def _turn(self) -> None:
        # Cleared before the step: work that arrives during the step sets it again, so the loop does not sleep over it.
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
        self._listener.on_report(Report(self._engine.stats(), result))

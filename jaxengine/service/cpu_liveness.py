"""Whether this process computes: what tells a slow step from a stuck one, where a step runs on the CPU.

On a GPU a step takes milliseconds, and a thread that waits for one that never ends may spin: there silence is enough.
"""

import time

# Of one core. On two that thirty programs wanted a step fell below 0.05 for two seconds; a process that waits takes 0.
MIN_SHARE = 0.01


class CpuLiveness:
    """CPU time of the process, without that of the thread that asks."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), self._others()

    def at_work(self) -> bool:
        """Whether it has computed since it was asked last."""
        wall, cpu = time.monotonic(), self._others()
        share = (cpu - self._cpu) / max(wall - self._wall, 1e-3)
        self._wall, self._cpu = wall, cpu
        return share >= MIN_SHARE

    def _others(self) -> float:
        return time.process_time() - time.thread_time()

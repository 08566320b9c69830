"""Whether this process is computing: tells a slow step from a stuck one where the CPU computes steps.

On a GPU a step takes milliseconds, so there a silent step loop is stuck; and CPU time would prove nothing, since a
thread that waits for a GPU step may spin for ever.
"""

import time

# Of one core. On two cores wanted by thirty programs a step fell below 0.05 for two seconds; a waiting process uses 0.
MIN_SHARE = 0.01


class CpuLiveness:
    """CPU time of the process, without that of the thread that asks."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), self._cpu_of_others()

    def is_computing(self) -> bool:
        """Whether the process has computed since this was called last."""
        wall, cpu = time.monotonic(), self._cpu_of_others()
        share = (cpu - self._cpu) / max(wall - self._wall, 1e-3)
        self._wall, self._cpu = wall, cpu
        return share >= MIN_SHARE

    def _cpu_of_others(self) -> float:
        return time.process_time() - time.thread_time()

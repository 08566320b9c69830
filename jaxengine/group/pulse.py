"""The thread that shows life to the other processes of a group, and notices when one of them shows none.

A process that has ended closes its connections, and that is noticed at once. One that is stopped, or whose machine is
gone, says nothing at all, and then neither JAX nor NCCL raises (jax-ml/jax#38503).
"""

import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Mapping

from jaxengine.group.link import Link
from jaxengine.group.membership import BEAT_SECONDS
from jaxengine.group.wire import Kind


def keep_pulse(
    links: Callable[[], Mapping[int, Link]],
    patience: float,
    number: Callable[[], int],
    silent: Callable[[int, Link], None],
) -> None:
    """Start it.

    Args:
        links: to the other processes as of now, by rank.
        patience: seconds without a sign of life after which a process counts as gone.
        number: what a sign of life tells: the last launch.
        silent: is called with a process that has shown no life for longer.
    """

    def run() -> None:
        pause = min(BEAT_SECONDS, patience / 4)
        while True:
            for link in links().values():
                link.send(Kind.BEAT, number=number())
            before = time.monotonic()
            time.sleep(pause)
            if time.monotonic() - before > patience / 2:
                continue  # this process itself was stopped: what has come meanwhile is still to be read
            for rank, link in links().items():
                if link.silence > patience:
                    faulthandler.dump_traceback(file=sys.stderr)  # what this process waits for, perhaps
                    silent(rank, link)

    threading.Thread(target=run, name="pulse", daemon=True).start()

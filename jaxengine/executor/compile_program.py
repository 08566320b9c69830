"""The program of `CompileProcess`: compiles what a server asks for, and ends with it.

Nothing that takes long to import is imported before the process ends with its server and leaves it the cores: it may
get so little of them that a server that stops would leave it behind for minutes.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Hashable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jaxengine.lifetime import die_with_parent


def main(descriptor: int, parent: int, policy: int) -> None:
    """Compile what is asked for over `descriptor`, one after another, until the server `parent` is gone.

    Signals are the server's to answer: it still drains when one comes to both. Where memory runs out, the kernel ends
    this process first.
    """
    die_with_parent(parent)
    os.sched_setscheduler(0, policy, os.sched_param(0))  # inherited by all threads
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # a sandbox may have /proc read-only
        Path("/proc/self/oom_score_adj").write_text("1000")
    compile_for(Connection(descriptor))


def compile_for(connection: "Connection[Any, Any]") -> None:
    """Do what comes over `connection`: where the compile cache is and the recipe, then names of executables. Each name
    goes back once it is done.
    """
    from concurrent.futures import ThreadPoolExecutor

    from jaxengine.executor.compile_cache import COMPILES, enable_compile_cache
    from jaxengine.executor.deep_stacks import deep_stacks

    directory, recipe = connection.recv()
    enable_compile_cache(directory)
    jobs = recipe.jobs(directory)

    def compile_one(name: Hashable) -> None:
        try:
            with COMPILES.expected():
                jobs[name]()
        finally:
            connection.send(name)  # the server runs into the same failure, and logs it

    with deep_stacks(), ThreadPoolExecutor(1) as pool:
        while True:
            try:
                pool.submit(compile_one, connection.recv())
            except (EOFError, OSError):  # the server has ended; nothing waits for the compile that runs
                os._exit(os.EX_OK)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

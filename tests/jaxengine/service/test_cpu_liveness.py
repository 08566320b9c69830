"""`CpuLiveness` in a process of its own: threads that earlier tests left in this one would count as computing."""

import subprocess
import sys

PROGRAM = """
import threading, time
from jaxengine.service.cpu_liveness import CpuLiveness

seen = []
for work in (lambda: sum(range(100_000)), lambda: time.sleep(0.05)):
    ended = threading.Event()
    def other(work=work):
        while not ended.is_set():
            work()
    thread = threading.Thread(target=other)
    thread.start()
    liveness = CpuLiveness()
    time.sleep(1)
    seen.append(liveness.is_computing())
    ended.set()
    thread.join()
liveness = CpuLiveness()
sum(range(10_000_000))
seen.append(liveness.is_computing())
print(seen)
"""


def test_a_thread_that_computes_counts_one_that_waits_and_the_one_that_asks_do_not() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[True, False, False]"

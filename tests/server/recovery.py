"""How soon the default model answers again after kill -9 of its engine, whenever that comes. Run by hand:

python -m tests.server.recovery [KILLS]

Each time is from the signal to the end of the first whole answer that follows. Every third engine is killed while it
loads. Of each time the load of the new engine, from the start of its process until the server is ready, is what it is:
exits with 1 if what comes before and after took more than `SLACK`.
"""

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.processes import NO_CERTIFICATES, gone
from tests.servers import READY_SECONDS, Server, serving

SLACK = 2.0  # seconds
BETWEEN = (1.0, 20.0)  # seconds from an answer to the next kill
LOADING = (0.0, 6.0)  # seconds from a kill to a second kill, while the new engine loads
BODY = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 8}}


def main(kills: int) -> int:
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory)) as server:
        server.wait_ready()
        answered(server)
        within = sum(recovers(server, draw, again=number % 3 == 2) for number in range(kills))
    print(f"{within} of {kills} answered within the load and {SLACK:g} s")
    return int(within < kills)


def recovers(server: Server, draw: random.Random, *, again: bool) -> bool:
    time.sleep(draw.uniform(*BETWEEN))
    began = kill(server)
    if again:
        time.sleep(draw.uniform(*LOADING))
        began = kill(server)
    server.wait_ready()
    ready, started = now(), start_of(server.engine_pid())
    answered(server)
    before, load, after = started - began, ready - started, now() - ready
    when = "while it loaded" if again else ""
    print(f"{before + load + after:.1f} s = {before:.1f} + load {load:.1f} + answer {after:.1f} {when}", flush=True)
    return before + after <= SLACK


def kill(server: Server) -> float:
    """Kill the engine; the moment, in seconds since boot."""
    engine, moment = server.engine_pid(), now()
    os.kill(engine, signal.SIGKILL)
    assert gone(engine)
    server.wait_for(503)  # the engine's threads, which hold its socket, end a little later
    return moment


def now() -> float:
    """Seconds since boot, the clock by which the kernel dates the start of a process."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def answered(server: Server) -> None:
    answer = httpx.post(server.url + "/generate", json=BODY, timeout=READY_SECONDS, **NO_CERTIFICATES)
    assert answer.status_code == 200, answer.text


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 12))

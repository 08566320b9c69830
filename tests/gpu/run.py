"""The whole evidence of a GPU in one command: `python -m tests.gpu.run`. It needs this repository, JAX, Flax and NumPy;
torch and transformers for the comparison. It downloads nothing and changes nothing on the device.

Writes TIME-DEVICE-COMMIT.json and .md to `--out`, again after each section; what a killed run leaves in rows.jsonl is
made into tables by `python -m tests.gpu.report`. Ends with 1 if a section failed or an answer was wrong; the tables are
written all the same.
"""

import argparse
import datetime
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.gpu import report
from tests.gpu.record import Record, read
from tests.gpu.scale import SCALES
from tests.gpu.sections import KNOWN, SECTIONS, environment, spawn


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="where the results go")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections to run")
    parser.add_argument("--minutes", type=float, default=9.5, help="for the whole run; what does not fit is cut short")
    parser.add_argument("--exact", type=Path, help="what a CPU answered, see correctness.py; by default it answers now")
    parser.add_argument("--commit", default="", help="of this tree, where git cannot tell")
    parser.add_argument("--scale", choices=SCALES, default="full", help="smoke: tiny shapes, to try the scripts out")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    end = time.monotonic() + 60 * given.minutes
    given.out.mkdir(parents=True, exist_ok=True)
    rows = given.out / "rows.jsonl"
    rows.unlink(missing_ok=True)
    record = Record(rows)
    started = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d-%H%M")
    record.add("run", started=started, scale=given.scale, **report.identity(given.commit))
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= environment(Path(cache))
        if given.exact:
            os.environ[KNOWN] = str(given.exact.absolute())
        for name in given.only:
            left = end - time.monotonic()
            own = SECTIONS[name].seconds if given.scale == "full" else left
            problem = spawn(name, given.scale, rows, min(own, left)) if left > 1 else "no time left"
            if problem:
                record.add("errors", part=name, error=problem)
            tables = read(rows)
            written = report.write(tables, given.out)
    rows.unlink()
    print(written.read_text())
    return 1 if tables.get("errors") or any(not row["ok"] for row in tables.get("correctness", ())) else 0


if __name__ == "__main__":
    sys.exit(main())

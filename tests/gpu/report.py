"""Rows → results: what the measured ceilings make of them, as JSON and as Markdown tables.

`python -m tests.gpu.report rows.jsonl` writes those of a run that was killed.
"""

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tests.gpu.counters import SHARES, STALLS
from tests.gpu.loads import OURS
from tests.gpu.record import Row, Tables, read

PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "flax", "numpy", "torch", "transformers")
TIMED = ("decode", "prefill", "experts", "products", "towers")  # with bytes and operations
Column = tuple[str, Callable[[Row], str]]


# --- what was measured, and on what ---------------------------------------------------------------------------------


def identity(commit: str) -> Row:
    """Commit, versions and machine. Reads the driver's version and changes nothing."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return {
        "commit": commit or _output(["git", "describe", "--always", "--dirty", "--abbrev=12"]) or "unknown",
        "gpu": _output(query) or "No GPU",
        "host": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "versions": versions,
    }


def _output(command: list[str]) -> str:
    """Standard output, or "" where the command is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=Path(__file__).parent)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


# --- against the ceilings -------------------------------------------------------------------------------------------


def derive(tables: Tables) -> None:
    """Adds rates, shares of the roofline and ratios to the rows, in place."""
    rates = {row["unit"]: row["rate"] for row in tables.get("ceilings", ())}
    for row in [row for name in TIMED for row in tables.get(name, ())]:
        row["tokens_per_second"] = row["tokens"] / row["seconds"]
        row["bandwidth"] = row["bytes"] / row["seconds"]
        row["arithmetic"] = row["operations"] / row["seconds"]
        if len(rates) == 2:
            floor = max(row["bytes"] / rates["byte"], row["operations"] / rates["operation"])
            row["share"] = floor / row["seconds"]
    varied = {"grammars": "constrained", "adapters": "adapters", "speculation": "guesses", "beams": "width"}
    for table, what in varied.items():
        rows = tables.get(table, ())
        free = {(row["rows"], row.get("context")): row["seconds"] for row in rows if not row[what]}
        for row in rows:
            row["tokens_per_second"] = row["tokens"] / row["seconds"]
            if (row["rows"], row.get("context")) in free:
                row["beside_none"] = free[row["rows"], row.get("context")] / row["seconds"]
    greedy = {row["rows"]: row["seconds"] for row in tables.get("samplers", ()) if row["asked"] == "greedy"}
    for row in tables.get("samplers", ()):
        row["beside_greedy"] = greedy[row["rows"]] / row["seconds"]
    ours = {row["load"]: row["seconds"] for row in tables.get("loads", ()) if row["engine"] == OURS}
    for row in tables.get("loads", ()):
        row["tokens_per_second"] = row["tokens"] / row["seconds"]
        if row["load"] in ours:
            row["ours_is_faster_by"] = row["seconds"] / ours[row["load"]]


# --- tables ---------------------------------------------------------------------------------------------------------


def text(name: str) -> Column:
    return name.replace("_", " "), lambda row: str(row.get(name, ""))


def number(title: str, name: str, scale: float = 1, form: str = ",.1f") -> Column:
    return title, lambda row: format(row[name] * scale, form) if name in row else ""


TOKENS = number("tok/s", "tokens_per_second", form=",.0f")
SHARE = number("share of roofline", "share", form=".0%")
MARKDOWN: Mapping[str, tuple[str, tuple[Column, ...]]] = {
    "correctness": (
        "Correctness (relative errors)",
        (*map(text, ("check", "backend", "dtype")), number("error", "error", form=".2g"), text("limit"), text("ok")),
    ),
    "ceilings": ("Ceilings, measured", (text("what"), number("T/s", "rate", 1e-12, ",.2f"), text("unit"))),
    "starts": (
        "Start: new process → first token; every bucket compiled (weights drawn on the device)",
        (text("kind"), number("first token, s", "ready_seconds"), number("all compiled, s", "compiled_seconds")),
    ),
    "servers": (
        "A small model behind HTTP, one stream",
        (
            number("ready, s", "ready_seconds"),
            number("first token, ms", "first_seconds", 1e3),
            text("tokens"),
            number("s in all", "seconds", form=",.2f"),
        ),
    ),
    "prefill": (
        "Prefill: a lone prompt, submission → first token",
        (
            *map(text, ("model", "weights", "tokens")),
            number("ms", "seconds", 1e3),
            TOKENS,
            number("TFLOP/s", "arithmetic", 1e-12, ",.0f"),
            SHARE,
        ),
    ),
    "decode": (
        "Decode",
        (
            *map(text, ("model", "weights", "cache", "rows", "context")),
            TOKENS,
            number("ms/step", "seconds", 1e3, ",.2f"),
            number("p99 ms", "p99_seconds", 1e3, ",.2f"),
            number("GB/s", "bandwidth", 1e-9, ",.0f"),
            SHARE,
            number("host ms/step", "host_seconds", 1e3, ",.2f"),
            number("of which launches", "launch_seconds", 1e3, ",.2f"),
            number("launches while idle", "drained_seconds", 1e3, ",.2f"),
            number("device idle at most", "idle_at_most", form=".1%"),
        ),
    ),
    "grammars": (
        "Decode under grammars",
        (
            *map(text, ("rows", "constrained")),
            TOKENS,
            number("ms/step", "seconds", 1e3, ",.2f"),
            number("of which masks", "mask_seconds", 1e3, ",.2f"),
            number("rate beside none", "beside_none", form=",.2f"),
        ),
    ),
    "adapters": (
        "Decode with adapters",
        (
            *map(text, ("rows", "adapters")),
            TOKENS,
            number("ms/step", "seconds", 1e3, ",.2f"),
            number("rate beside none", "beside_none", form=",.2f"),
        ),
    ),
    "speculation": (
        "Decode with drafts, all guesses wrong",
        (
            *map(text, ("rows", "context", "guesses")),
            number("ms/step", "seconds", 1e3, ",.2f"),
            number("of which host", "host_seconds", 1e3, ",.2f"),
            number("rate beside none", "beside_none", form=",.2f"),
        ),
    ),
    "beams": (
        "Decode of beams",
        (
            *map(text, ("rows", "width")),
            TOKENS,
            number("ms/step", "seconds", 1e3, ",.2f"),
            number("of which host", "host_seconds", 1e3, ",.2f"),
            number("rate beside none", "beside_none", form=",.2f"),
        ),
    ),
    "samplers": (
        "Decode with samplers",
        (
            *map(text, ("rows", "asked")),
            number("ms/step", "seconds", 1e3, ",.2f"),
            number("of which host", "host_seconds", 1e3, ",.2f"),
            number("rate beside greedy", "beside_greedy", form=",.2f"),
        ),
    ),
    "waits": (
        "What products wait for, in % of the most, and warps that wait for each instruction that is issued",
        (
            *map(text, ("weights", "shape", "tokens")),
            number("µs", "seconds", 1e6),
            number("GHz", "clock", 1e-9, ",.2f"),
            *(number(name.replace("_", " "), name, form=".0f") for name in SHARES),
            *(number(name.replace("_", " "), name, form=".1f") for name in STALLS),
        ),
    ),
    "tilings": (
        "Products in tiles of other sizes (outputs x tokens / splits, warps, stages), weights from memory",
        (
            *map(text, ("weights", "shape", "tokens", "tiles")),
            number("µs", "seconds", 1e6),
            number("GB/s", "bandwidth", 1e-9, ",.0f"),
            number("TFLOP/s", "arithmetic", 1e-12, ",.0f"),
        ),
    ),
    "options": (
        "Decode with other compiler options, a few layers",
        (
            *map(text, ("way", "rows")),
            number("ms/step", "seconds", 1e3, ",.2f"),
            number("of which host", "host_seconds", 1e3, ",.2f"),
        ),
    ),
    "experts": (
        "A layer of experts, each token's drawn at random",
        (
            *map(text, ("shape", "weights", "tokens")),
            number("ms", "seconds", 1e3, ",.3f"),
            number("GB/s", "bandwidth", 1e-9, ",.0f"),
            number("TFLOP/s", "arithmetic", 1e-12, ",.0f"),
            SHARE,
        ),
    ),
    "products": (
        "Products of a layer, with weights in fewer bits",
        (
            *map(text, ("shape", "weights", "tokens")),
            number("µs", "seconds", 1e6),
            number("GB/s", "bandwidth", 1e-9, ",.0f"),
            number("TFLOP/s", "arithmetic", 1e-12, ",.0f"),
            SHARE,
            number("faster than 16 bits", "faster_than_16_bits", form=",.2f"),
        ),
    ),
    "towers": (
        "Pictures through a tower",
        (
            *map(text, ("tower", "tokens")),
            number("ms", "seconds", 1e3, ",.2f"),
            number("TFLOP/s", "arithmetic", 1e-12, ",.0f"),
            SHARE,
        ),
    ),
    "loads": (
        "Loads: requests x (prompt + new), all at once",
        (
            text("load"),
            text("engine"),
            number("s", "seconds", form=",.2f"),
            TOKENS,
            number("ours is faster by", "ours_is_faster_by", form=",.2f"),
            text("attention"),
        ),
    ),
    "traces": (
        "Traces of decode steps",
        (
            *map(text, ("weights", "rows")),
            number("kernels/step", "kernels_per_step", form=",.0f"),
            number("idle", "idle", form=".1%"),
            number("waiting for the host", "waited", form=".1%"),
            text("driver_calls_a_step"),
        ),
    ),
    "kernels": (
        "Slowest kernels of a decode step",
        (
            *map(text, ("weights", "rows", "kernel")),
            number("calls", "calls"),
            number("µs/step", "seconds", 1e6),
            number("share", "share", form=".1%"),
        ),
    ),
    "launches": (
        "What the host does to launch a decode step, parts inside of wholes",
        (*map(text, ("weights", "rows", "event")), number("calls", "calls"), number("µs/step", "seconds", 1e6)),
    ),
    "counters": ("Counters", (text("compiles_after_warmup"), text("steps"), text("bytes_grown"))),
    "skipped": ("Not measured", (text("what"), text("why"))),
    "errors": ("Errors", (text("part"), text("error"))),
    "parts": ("Where the time went", (text("part"), number("s", "seconds"))),
}


def table(columns: Iterable[Column], rows: Iterable[Row]) -> str:
    columns = list(columns)
    lines = [[title for title, _ in columns], ["---"] * len(columns)]
    lines += [[cell(row).replace("|", "\\|").replace("\n", " ") for _, cell in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(tables: Tables) -> str:
    (run,) = tables["run"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    head = [f"# {run['gpu']}", f"Commit {run['commit']}; {run['host']}; {versions}; scale {run['scale']}."]
    filled = [(title, table(columns, tables[name])) for name, (title, columns) in MARKDOWN.items() if name in tables]
    return "\n\n".join([*head, *(f"## {title}\n\n{body}" for title, body in filled)]) + "\n"


def write(tables: Tables, directory: Path) -> Path:
    """Writes both files; the Markdown one's path."""
    derive(tables)
    (run,) = tables["run"]
    name = re.sub(r"[^a-z0-9]+", "-", f"{run['started']}-{run['gpu'].split(',')[0]}-{run['commit']}".lower())
    (directory / f"{name}.json").write_text(json.dumps(tables, indent=1) + "\n")
    path = directory / f"{name}.md"
    path.write_text(markdown(tables))
    return path


if __name__ == "__main__":
    left = Path(sys.argv[1])
    print(write(read(left), left.parent).read_text())

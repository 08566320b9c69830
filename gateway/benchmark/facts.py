"""What was measured, and on what: the client's machine, the server's options, and what its metrics count.

The URL is named, without what could be a secret; the API key never.
"""

import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from gateway import __version__
from gateway.benchmark import plain_json
from gateway.benchmark.connection import ConnectionLost
from gateway.benchmark.http_client import HttpClient, Unreachable

LARGEST = 1e18  # of a count
PACKAGES = ("h11", "uvloop", "grpcio")
# Of each count the first series that the server has, summed over its labels.
COUNTERS = {
    "compiles_after_warmup": ("textgen_compiles_after_warmup_total",),
    "prefix_cache_hit_tokens": ("textgen_cached_prompt_tokens_total", "vllm:prefix_cache_hits_total"),
    "preemptions": ("textgen_preemptions_total", "vllm:num_preemptions_total"),
}
SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)(?:\s+\d+)?")


def machine() -> dict[str, str]:
    """Of the client."""
    return {
        "cpu": f"{os.cpu_count()} x {_processor()}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "text-generation-benchmark": __version__,
        **{package: metadata.version(package) for package in PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


async def server(client: HttpClient) -> dict[str, Any]:
    """What a server says of itself on /info and /version, as far as it does."""
    said: dict[str, Any] = {"url": client.url}
    for target in ("/info", "/version"):
        text = await _text(client, target)
        try:
            value = plain_json.loads(text) if text else None
        except ValueError:
            value = None
        if isinstance(value, dict):
            said[target.removeprefix("/")] = value
    return said


async def counters(client: HttpClient) -> dict[str, float]:
    """Of `COUNTERS`, those that the server has."""
    return read_counters(await _text(client, "/metrics"))


def read_counters(exposition: str) -> dict[str, float]:
    """Out of metrics in Prometheus' text format."""
    sums: dict[str, float] = {}
    for line in exposition.splitlines():
        if not line.startswith("#") and (sample := SAMPLE.fullmatch(line.strip())):
            count = _count(sample[2])
            if count is not None:
                sums[sample[1]] = sums.get(sample[1], 0.0) + count
    found = {name: next((sums[each] for each in series if each in sums), None) for name, series in COUNTERS.items()}
    return {name: value for name, value in found.items() if value is not None}


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What the server counted in between; after a restart it counts from 0."""
    return {
        name: after[name] - before[name] if after[name] >= before[name] else after[name]
        for name in before
        if name in after
    }


def _count(text: str) -> float | None:
    """None if it is none, as NaN."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= LARGEST else None


async def _text(client: HttpClient, target: str) -> str:
    try:
        reply = await client.get(target)
    except (Unreachable, ConnectionLost):
        return ""
    return bytes(reply.body).decode("utf-8", errors="replace") if reply.status == 200 else ""

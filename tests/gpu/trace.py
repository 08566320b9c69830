"""Which kernels decoding spends the device's time on, how much of it nothing ran, and what the host does to launch a
step, from JAX's own profiler.
"""

import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
from jax.profiler import ProfileData

from tests.gpu.decode import fill
from tests.gpu.engines import Client
from tests.gpu.record import Record, Row
from tests.gpu.scale import Scale

STEPS = 16
SHOWN = 15
LAUNCH = 3000  # ns; a longer gap is no launch of a graph's next kernel: the device waits for the host
FEW, ALL = 1, 3  # of the host's events. Tracing them all would starve the device


class Span(NamedTuple):
    """A kernel's run; nanoseconds."""

    name: str
    start: float
    end: float


def measure(client: Client, record: Record, scale: Scale, quantize: str | None = None) -> None:
    """Rows of "kernels", the slowest first, and one of "traces", for each batch size. `quantize`: of the weights."""
    weights = quantize or scale.dtype
    crowd: list[int] = []
    for rows in scale.traced_rows:
        crowd += client.submit(rows - len(crowd), min(scale.contexts), scale.growth)
        fill(client, crowd)
        profile = traced(client)
        spans = list(device_spans(profile))
        if not spans:
            lines = [f"{plane.name}: {line.name}" for plane in profile.planes for line in plane.lines]
            record.add("skipped", what=f"trace of {rows} rows", why=f"no stream of a GPU in the profile, but {lines}")
            continue
        busy, whole = busy_ns(spans), max(span.end for span in spans) - min(span.start for span in spans)
        waited = sum(gap for gap in gaps_ns(spans) if gap > LAUNCH)
        calls = ", ".join(f"{count / STEPS:.3g} {name}" for name, count in driver_calls(profile).most_common(SHOWN))
        record.add(
            "traces",
            weights=weights,
            rows=rows,
            steps=STEPS,
            kernels_per_step=len(spans) / STEPS,
            idle=1 - busy / whole,
            waited=waited / whole,
            driver_calls_a_step=calls,
        )
        for row in slowest(spans):
            record.add("kernels", weights=weights, rows=rows, **row)
        for row in launching(traced(client, ALL)):
            record.add("launches", weights=weights, rows=rows, **row)
    client.cancel(crowd)


def traced(client: Client, level: int = FEW) -> ProfileData:
    """The profile of `STEPS` steps, with what the host does in as much detail as `level` says."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, level
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory, profiler_options=options):
            for _ in range(STEPS):
                client.step()
        (file,) = Path(directory).rglob("*.xplane.pb")
        return ProfileData.from_file(str(file))


def device_spans(profile: ProfileData) -> Iterator[Span]:
    """Kernels and copies on the streams of the first GPU; other lines of a plane repeat them under other names."""
    for plane in profile.planes:
        if not plane.name.startswith("/device:GPU:0"):
            continue
        for line in plane.lines:
            if line.name.startswith("Stream"):
                yield from (Span(e.name, e.start_ns, e.start_ns + e.duration_ns) for e in line.events)


def driver_calls(profile: ProfileData) -> Counter[str]:
    """What the host asked CUDA's driver for, by name: a step should be a few graphs and copies, and no lone kernels."""
    return Counter(
        event.name.partition(":")[0]
        for plane in profile.planes
        if not plane.name.startswith("/device:")
        for line in plane.lines
        for event in line.events
        if re.match(r"cu[A-Z]", event.name)
    )


def launching(profile: ProfileData) -> list[Row]:
    """What the step's own thread did longest, XLA's parts inside of JAX's: `command_buffer::update` is a graph whose
    buffers have moved since it was last launched.
    """
    seconds: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for plane in profile.planes:
        for line in plane.lines if plane.name.startswith("/host:") else ():
            for event in line.events if line.name.startswith("python") else ():
                name = re.split(r" \(|:?#", event.name)[0]
                seconds[name] += event.duration_ns / 1e9
                calls[name] += 1
    ranked = seconds.most_common(SHOWN)
    return [{"event": name, "calls": calls[name] / STEPS, "seconds": spent / STEPS} for name, spent in ranked]


def busy_ns(spans: Iterable[Span]) -> float:
    """Length of the union of `spans`: streams overlap."""
    busy, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        busy += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return busy


def gaps_ns(spans: Iterable[Span]) -> Iterator[float]:
    """How long nothing ran, each time."""
    until = float("inf")
    for span in sorted(spans, key=lambda span: span.start):
        if span.start > until:
            yield span.start - until
        until = span.end if until == float("inf") else max(until, span.end)


def slowest(spans: Iterable[Span]) -> list[Row]:
    """The kernels that took most time, with their share of all of it."""
    runs: dict[str, list[float]] = defaultdict(list)
    for span in spans:
        runs[span.name].append(span.end - span.start)
    total = sum(map(sum, runs.values()))
    ranked = sorted(runs.items(), key=lambda item: -sum(item[1]))[:SHOWN]
    return [
        {"kernel": name, "calls": len(each) / STEPS, "seconds": sum(each) / STEPS / 1e9, "share": sum(each) / total}
        for name, each in ranked
    ]

"""A line chart as SVG, by hand: a few lines over loads, whose distances are those of their logarithms.

Colours are the page's, by CSS variables. Each line has a mark of its own too, for those who tell colours apart badly.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 16, 44
LABEL_GAP = 30  # between labels of the horizontal axis
TICKS = 5
MARKS = ("circle", "square", "diamond")

Lines = Mapping[str, Sequence[float | None]]


def chart(name: str, title: str, across: str, loads: Sequence[float], lines: Lines) -> str:
    """name: an identifier of its own on the page. across: what the loads are. lines: a number at each load, or none."""
    highest = max((value for line in lines.values() for value in line if value is not None), default=0.0)
    top = ticks(highest)[-1] or 1.0
    parts = [*_frame(across, loads, top)]
    for number, line in enumerate(lines.values()):
        points = [
            (_x(load, loads), _y(value, top)) for load, value in zip(loads, line, strict=True) if value is not None
        ]
        parts += _line(number, points)
    last = ", ".join(f"{key} {line[-1]:.4g}" for key, line in lines.items() if line and line[-1] is not None)
    described = f"{title}, over {len(loads)} loads from {loads[0]:g} to {loads[-1]:g}; at the last: {last}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(described)}</desc>'
        f"{''.join(parts)}</svg>{_legend(lines)}"
    )


def ticks(highest: float) -> list[float]:
    """From 0 to no less than `highest`, in steps of 1, 2 or 5 times a power of ten."""
    if highest <= 0:
        return [0.0, 1.0]
    raw = highest / TICKS
    power = 10 ** math.floor(math.log10(raw))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= raw * (1 - 1e-9))
    return [step * number for number in range(math.ceil(highest / step - 1e-9) + 1)]


def _x(load: float, loads: Sequence[float]) -> float:
    low, high = min(loads), max(loads)
    share = math.log(load / low) / math.log(high / low) if high > low else 0.5
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)


def _frame(across: str, loads: Sequence[float], top: float) -> Iterator[str]:
    for tick in ticks(top):
        y = _y(tick, top)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,.10g}</text>'
    shown = -math.inf
    for load in sorted(loads):
        x = _x(load, loads)
        if x - shown >= LABEL_GAP:
            shown = x
            yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{load:g}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(across)}</text>'


def _line(number: int, points: Sequence[tuple[float, float]]) -> Iterator[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline class="line s{number}" points="{path}"/>'
    for x, y in points:
        yield _mark(number, x, y)


def _mark(number: int, x: float, y: float) -> str:
    kind = MARKS[number % len(MARKS)]
    if kind == "circle":
        return f'<circle class="mark s{number}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    turned = f' transform="rotate(45 {x:.1f} {y:.1f})"' if kind == "diamond" else ""
    return f'<rect class="mark s{number}" x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"{turned}/>'


def _legend(lines: Lines) -> str:
    if len(lines) < 2:
        return ""
    entries = "".join(
        f'<li><svg viewBox="0 0 14 14" width="14" height="14" aria-hidden="true">{_mark(number, 7, 7)}</svg>'
        f"{escape(key)}</li>"
        for number, key in enumerate(lines)
    )
    return f'<ul class="legend">{entries}</ul>'

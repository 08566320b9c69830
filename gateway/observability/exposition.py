"""Metrics in Prometheus' text format, version 0.0.4.

prometheus_client's own writer is not used, because it ends every counter's name in `_total`, which none of TGI's and
Triton's has.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import Metric
from prometheus_client.utils import floatToGoString

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
WITHOUT_TOTAL = ("tgi_", "nv_")  # how counters begin that are written as they are called
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Hidden = Mapping[str, Callable[[str], str]]


def render(metrics: Iterable[Metric], hidden: Hidden | None = None) -> bytes:
    """The text of all series. `hidden` says, by a label's name, what is written for its value, if it has one."""
    return "".join(_family(metric, hidden or {}) for metric in metrics).encode()


def _family(metric: Metric, hidden: Hidden) -> str:
    total = metric.type == "counter" and not metric.name.startswith(WITHOUT_TOTAL)
    family = metric.name + ("_total" if total else "")
    lines = [f"# HELP {family} {metric.documentation}", f"# TYPE {family} {metric.type}"]
    for sample in metric.samples:
        if sample.name.endswith("_created"):
            continue
        name = family if metric.type == "counter" else sample.name
        shown = {key: hidden[key](value) if value and key in hidden else value for key, value in sample.labels.items()}
        labels = ",".join(f'{key}="{value.translate(ESCAPES)}"' for key, value in sorted(shown.items()))
        lines.append(f"{name}{'{' + labels + '}' if labels else ''} {floatToGoString(sample.value)}")
    return "\n".join(lines) + "\n"

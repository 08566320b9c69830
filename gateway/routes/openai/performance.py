"""What an answer says of its own speed and of the server's load, under vLLM's names.

The first is a field of the body where the operator wants it (`--enable-per-request-metrics`), the second the header
that routing gateways ask for (ORCA, Open Request Cost Aggregation): both are of answers, neither of refusals.
"""

from typing import Any

from fastapi import Request

from gateway.http.encoding import json_bytes
from gateway.observability.request_stats import RequestStats
from gateway.request.state import Gateway

ASKED, TOLD = "endpoint-load-metrics-format", "endpoint-load-metrics"


def timings(gateway: Gateway, stats: RequestStats) -> dict[str, Any]:
    """`metrics` beside the choices of an answer, in milliseconds and tokens a second: null where there are several
    sequences, which share no clock; nothing unless the operator wants it.

    The time to the first token runs from when the request was first scheduled, and the speed is over all from there.
    """
    if not gateway.options.enable_per_request_metrics:
        return {}
    if len(stats.sequences) > 1:
        return {"metrics": None}
    gaps = stats.generated_tokens - 1
    metrics = {
        "time_to_first_token_ms": 1e3 * stats.prefill,
        "generation_time_ms": 1e3 * stats.decode,
        "queue_time_ms": 1e3 * stats.queue,
        "mean_itl_ms": 1e3 * stats.decode / gaps if gaps > 0 else None,
        "tokens_per_second": stats.generated_tokens / stats.inference if stats.inference else None,
    }
    return {"metrics": metrics}


def load_header(request: Request, gateway: Gateway) -> dict[str, str]:
    """The server's load as the client asked for it, in `TEXT` or `JSON`; nothing where it asked for neither."""
    load = gateway.metrics.load
    kind = request.headers.get(ASKED, "").upper()
    if kind == "TEXT":
        return {TOLD: "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in load.items())}
    if kind == "JSON":
        return {TOLD: "JSON " + json_bytes({"named_metrics": load}).decode()}
    return {}

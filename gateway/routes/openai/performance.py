"""The speed of an answer and the load of the server, under vLLM's names. Refusals carry neither.

The speed is a field of the body, with `--enable-per-request-metrics`. The load is the response header of ORCA (Open
Request Cost Aggregation), which routing gateways ask for.
"""

from typing import Any

from fastapi import Request

from gateway.http.encoding import json_bytes
from gateway.observability.request_stats import RequestStats
from gateway.request.gateway_state import Gateway

REQUEST_HEADER, RESPONSE_HEADER = "endpoint-load-metrics-format", "endpoint-load-metrics"


def timings(gateway: Gateway, stats: RequestStats) -> dict[str, Any]:
    """The field `metrics` of an answer, in milliseconds and tokens a second; no field unless the option is set. It is
    null for several sequences, which have no time to the first token in common.

    The time to the first token and the tokens a second count from when the request was first scheduled.
    """
    if not gateway.options.enable_per_request_metrics:
        return {}
    if len(stats.sequences) > 1:
        return {"metrics": None}
    metrics = {
        "time_to_first_token_ms": 1e3 * stats.prefill,
        "generation_time_ms": 1e3 * stats.decode,
        "queue_time_ms": 1e3 * stats.queue,
        "mean_itl_ms": None if stats.per_gap is None else 1e3 * stats.per_gap,
        "tokens_per_second": stats.generated_tokens / stats.inference if stats.inference else None,
    }
    return {"metrics": metrics}


def load_header(request: Request, gateway: Gateway) -> dict[str, str]:
    """The header with the server's load, as `TEXT` or as `JSON`; no header if the request asks for neither."""
    load = gateway.metrics.load
    kind = request.headers.get(REQUEST_HEADER, "").upper()
    if kind == "TEXT":
        return {RESPONSE_HEADER: "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in load.items())}
    if kind == "JSON":
        return {RESPONSE_HEADER: "JSON " + json_bytes({"named_metrics": load}).decode()}
    return {}

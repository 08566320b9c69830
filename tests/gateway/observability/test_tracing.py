"""Traces: a client's context reaches the engine, spans reach a collector, and log lines carry TGI's timings."""

import json
import logging
import re
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

from jaxengine.telemetry.logs import JsonFormatter
from jaxengine.telemetry.tracing import Tracing, valid_traceparent
from tests.gateway.fixtures import serve
from tests.gateway.toys import write_model
from tests.processes import PATIENCE, running_launcher

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Collector(trace_grpc.TraceServiceServicer):
    """An OTLP collector that keeps what it gets."""

    def __init__(self) -> None:
        self.received: list[trace.ExportTraceServiceRequest] = []

    def Export(self, request: trace.ExportTraceServiceRequest, context: grpc.ServicerContext):  # type: ignore[no-untyped-def]
        self.received.append(request)
        return trace.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Any]:
        resources = [resource for each in self.received for resource in each.resource_spans]
        return [span for resource in resources for scope in resource.scope_spans for span in scope.spans]

    def wait_for(self, *names: str) -> None:
        """Wait until spans of these names have come. Fails after `PATIENCE`."""
        deadline = time.monotonic() + PATIENCE
        while not {span.name for span in self.spans}.issuperset(names):
            assert time.monotonic() < deadline, self.spans
            time.sleep(0.02)


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    server, kept = grpc.server(futures.ThreadPoolExecutor(1)), Collector()
    trace_grpc.add_TraceServiceServicer_to_server(kept, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield kept, f"http://127.0.0.1:{port}"
    server.stop(None).wait()


async def test_spans_reach_the_collector_under_the_clients_trace(collector: tuple[Collector, str]) -> None:
    kept, endpoint = collector
    async with serve() as app:
        app.gateway.tracing = tracing = Tracing.to(endpoint, "mine")
        headers = {"traceparent": TRACEPARENT}
        await app.http.post("/generate", json={"inputs": "lo"}, headers=headers)
        [request] = app.engine.requests
        tracing.close()
    [message] = kept.received
    [resource] = message.resource_spans
    assert ("service.name", "mine") in [(each.key, each.value.string_value) for each in resource.resource.attributes]
    [span] = [span for span in resource.scope_spans[0].spans if span.name == "POST /generate"]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert request.traceparent == f"00-{TRACE}-{span.span_id.hex()}-01"
    attributes = {each.key for each in span.attributes}
    timings = {"total_time", "validation_time", "queue_time", "inference_time", "time_per_token"}
    assert timings | {"parameters", "seed"} <= attributes


def test_the_spans_of_a_request_are_one_tree_from_the_client_to_the_engine(
    collector: tuple[Collector, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, endpoint = collector
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")  # milliseconds, of both processes
    mock = ("--step-seconds=0.01", f"--otlp-endpoint={endpoint}")
    with running_launcher(write_model(tmp_path), f"--otlp-endpoint={endpoint}", mock=mock) as server:
        server.wait_for(200)
        body = {"inputs": "lo", "parameters": {"max_new_tokens": 5}}
        headers = {"traceparent": TRACEPARENT}
        answer = httpx.post(server.url + "/generate", json=body, headers=headers, timeout=PATIENCE)
        assert answer.status_code == 200
        kept.wait_for(
            "POST /generate", "infer"
        )  # the last span of each process, which has little time to send it when it ends
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
    found = kept.spans
    names = {span.span_id: span.name for span in found}
    assert {span.trace_id.hex() for span in found} == {TRACE}
    assert sorted((names.get(span.parent_span_id, "client"), span.name) for span in found) == [
        ("POST /generate", "infer"),
        ("POST /generate", "tokenize"),
        ("POST /generate", "validate"),
        ("client", "POST /generate"),
        ("infer", "decode"),
        ("infer", "prefill"),
        ("infer", "queued"),
    ]
    spans = {span.name: span for span in found}
    assert spans["queued"].end_time_unix_nano <= spans["prefill"].end_time_unix_nano
    assert spans["decode"].end_time_unix_nano - spans["decode"].start_time_unix_nano >= 30_000_000  # 4 steps of 10 ms
    assert spans["validate"].end_time_unix_nano <= spans["infer"].end_time_unix_nano
    assert spans["validate"].start_time_unix_nano <= spans["tokenize"].start_time_unix_nano
    attributes = {each.key: each.value for each in spans["infer"].attributes}
    assert attributes["finish"].string_value == "LENGTH" and "queue_time" in attributes


async def test_without_a_collector_the_clients_context_travels_on() -> None:
    async with serve() as app:
        for given in (TRACEPARENT, "nonsense", None):
            headers = {} if given is None else {"traceparent": given}
            await app.http.post("/v1/completions", json={"prompt": "lo"}, headers=headers)
        assert [request.traceparent for request in app.engine.requests] == [TRACEPARENT, "", ""]


@pytest.mark.parametrize(
    "text",
    [f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"01-{TRACE}-{PARENT}-01", TRACEPARENT.upper(),
     TRACEPARENT + "-x", "", "\n" + TRACEPARENT],
)  # fmt: skip
def test_a_malformed_context_is_no_context(text: str) -> None:
    assert valid_traceparent(text) == ""


def test_a_missing_collector_does_not_delay_the_end() -> None:
    tracing = Tracing.to("http://127.0.0.1:9", "mine")
    tracing.start("work").end()
    tracing.close()


async def test_a_log_line_carries_what_tgis_does_and_no_prompt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    asked = {"temperature": 0.7, "top_k": 5, "seed": 3, "max_new_tokens": 4, "stop": ["canary"], "watermark": True}
    asked |= {"top_a": 0.25, "dry_multiplier": 1.5, "dry_sequence_breakers": ["canary"], "sampler_order": [6, 0, 5, 1]}
    async with serve() as app:
        await app.post("/generate", inputs="hello canary", parameters=asked)
        await app.post("/v1/chat/completions", messages=[{"role": "user", "content": "hello"}], temperature=0)
        await app.post("/generate", inputs="")
    drawn, greedy, failed = [
        json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name == "gateway.access"
    ]
    assert {"timestamp", "level", "message", "target", "filename", "line_number", "span", "spans"} <= drawn.keys()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", drawn["timestamp"])
    span = drawn["span"]
    assert drawn["spans"] == [span] and span["name"] == "generate" and span["seed"] == "Some(3)"
    assert all(span[part].endswith("ms") for part in ("total_time", "queue_time", "time_per_token"))
    parameters = json.loads(span["parameters"])
    assert parameters.items() >= {"temperature": 0.7, "top_k": 5, "max_new_tokens": 4, "watermark_gamma": 0.5}.items()
    assert parameters.items() >= {"top_a": 0.25, "dry_multiplier": 1.5}.items()
    assert not {"order", "dry_breakers"} & parameters.keys()
    assert (greedy["span"]["name"], greedy["span"]["seed"]) == ("chat_completions", "None")
    assert "canary" not in str(drawn)
    assert "span" not in failed and "spans" not in failed


@pytest.mark.parametrize(("tokens_per_step", "said"), [(1, None), (2, "1.5"), (4, "2.0"), (5, "3.0")])
async def test_a_log_line_says_how_many_tokens_a_step_gave_where_the_engine_speculates(
    caplog: pytest.LogCaptureFixture, tokens_per_step: int, said: str | None
) -> None:
    """Six tokens, of which the first is a step's only one."""
    caplog.set_level(logging.INFO, "gateway.access")
    async with serve(tokens_per_step=tokens_per_step) as app:
        await app.post("/generate", inputs="lo")
    [line] = [record for record in caplog.records if record.name == "gateway.access"]
    assert line.__dict__["fields"]["span"].get("tokens_per_step") == said


async def test_probes_are_logged_only_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    async with serve(aip_health_route="/v1/models/mock") as app:
        for path in ("/", "/health", "/health/live", "/health/ready", "/ping", "/metrics", "/v1/models/mock"):
            assert (await app.http.get(path)).status_code == (await app.http.head(path)).status_code == 200
        await app.post("/ping")
        await app.post("/", inputs="hello")
    [line] = [record for record in caplog.records if record.name == "gateway.access"]
    assert json.loads(JsonFormatter().format(line))["method"] == "POST" and "span" in line.__dict__["fields"]

"""One request to servers that misbehave: what became of it is told by kind, and never taken for an answer."""

import asyncio
import json
import ssl
from time import perf_counter

import pytest

from gateway.benchmark.answer import Answer, Outcome
from gateway.benchmark.dialect import Chat, Completions, Dialect, Tgi
from gateway.benchmark.event_reader import EventReader
from gateway.benchmark.http_client import HttpClient, Unreachable, _reason
from gateway.benchmark.options import BenchmarkOptions
from gateway.benchmark.prompt import Prompt
from gateway.benchmark.sampling import Sampling
from gateway.benchmark.sender import Sender
from tests.gateway.benchmark.fake_server import FakeServer, Script, stream, text, usage

SAMPLING = Sampling(BenchmarkOptions())
DIALECTS: dict[str, Dialect] = {
    "openai": Completions("fake", SAMPLING, lengths=True),
    "chat": Chat("fake", SAMPLING, lengths=False),
    "tgi": Tgi(SAMPLING),
}


async def answer_to(script: Script, api: str = "openai", timeout: float = 20.0) -> Answer:
    async with FakeServer(lambda number, body: script).running() as server:
        client = HttpClient(server.url)
        try:
            return await Sender(client, DIALECTS[api], timeout=timeout).send(Prompt("hello", tokens=3))
        finally:
            client.close()


def tgi(token: str, generated: str | None = None) -> str:
    details = None if generated is None else {"generated_tokens": 3, "input_length": 5, "finish_reason": "length"}
    return json.dumps({"token": {"id": 1, "text": token}, "generated_text": generated, "details": details})


def delta(finish: str | None = None, **fields: object) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


async def test_a_stream_is_timed_chunk_by_chunk_and_its_tokens_are_the_servers() -> None:
    answer = await answer_to(stream(5, wait=0.1, gap=0.05))
    assert answer.complete and answer.streamed and answer.counted
    assert (answer.prompt_tokens, answer.output_tokens, len(answer.chunks)) == (3, 5, 5)
    assert 0.1 <= answer.ttft < 0.6 and 0.3 <= answer.e2e < 1.0
    assert answer.tpot == pytest.approx((answer.e2e - answer.ttft) / 4)


async def test_tgis_events_are_tokens() -> None:
    events = [(0.0, tgi("a")), (0.0, tgi("b")), (0.0, tgi("c", "abc"))]
    answer = await answer_to(Script(events=events), "tgi")
    assert answer.complete and len(answer.chunks) == 3
    assert (answer.prompt_tokens, answer.output_tokens) == (5, 3)


async def test_the_opening_of_a_chat_is_no_chunk() -> None:
    events = [
        (0.0, delta(role="assistant", content="")),
        (0.1, delta(content="a")),
        (0.0, delta(reasoning_content="b")),
        (0.0, delta(tool_calls=[{"index": 0}])),
        (0.0, delta("stop")),
    ]
    answer = await answer_to(Script(events=[*events, (0.0, usage(4, 3)), (0.0, "[DONE]")]), "chat")
    assert answer.complete and len(answer.chunks) == 3 and answer.ttft >= 0.1


@pytest.mark.parametrize(
    ("script", "outcome", "detail"),
    [
        (Script(429, body={"error": "busy"}), Outcome.REJECTED, "429"),
        (Script(500, body="oh"), Outcome.REFUSED, "500 oh"),
        (Script(503, body="draining"), Outcome.REFUSED, "503"),
        (Script(events=[(0, text("a")), (0, '{"error": {"message": "lost"}}')]), Outcome.BROKEN, "lost"),
        (Script(events=[(0, text("a")), (0, "{nonsense")]), Outcome.BROKEN, "cannot be read"),
        (Script(events=[(0, text("a")), (0, "[" * 100_000)]), Outcome.BROKEN, "cannot be read"),
        (Script(events=[(0, text("a")), (0, '{"usage": {"completion_tokens": 1e999}}')]), Outcome.BROKEN, "cannot be"),
        (Script(events=[(0, text("a")), (0, usage(3, 10**400))]), Outcome.BROKEN, "cannot be read"),
        (Script(body="[" * 100_000), Outcome.BROKEN, "cannot be read"),
        (Script(events=[(0, '{"error": "\\u001b[2Ja\\nb"}')]), Outcome.BROKEN, " [2Ja b"),
        (Script(events=[(0, text("a"))], cut=True), Outcome.BROKEN, "closed the connection"),
        (Script(events=[(0, text("a"))]), Outcome.BROKEN, "stopped before its end"),
        (Script(events=[(0, "[DONE]")]), Outcome.EMPTY, "no token"),
        (Script(events=[(0, text("", "stop")), (0, usage(3, 0)), (0, "[DONE]")]), Outcome.EMPTY, "no token"),
        (Script(body={"choices": []}), Outcome.EMPTY, "no token"),
        (Script(body="<html>"), Outcome.BROKEN, "cannot be read"),
        (Script(wait=5.0, body="late"), Outcome.TIMEOUT, "no whole answer within 0.3 s"),
        (stream(2, gap=5.0), Outcome.TIMEOUT, "no whole answer within 0.3 s"),
    ],
    ids=lambda each: str(each) if isinstance(each, Outcome) else "",
)
async def test_what_is_no_whole_answer_is_told_by_kind(script: Script, outcome: Outcome, detail: str) -> None:
    answer = await answer_to(script, timeout=0.3 if outcome is Outcome.TIMEOUT else 20.0)
    assert answer.outcome is outcome and detail in answer.detail
    assert answer.detail.isprintable() and len(answer.detail) < 300


async def test_what_a_server_says_of_an_error_is_cut() -> None:
    answer = await answer_to(Script(events=[(0, json.dumps({"error": {"message": "A" * 9999}}))]))
    assert answer.outcome is Outcome.BROKEN and len(answer.detail) < 300


async def test_a_server_that_was_given_up_stays_so() -> None:
    """Requests of an open loop are in flight then: one that is answered does not hide that others were not sent."""
    sender = Sender(HttpClient("http://127.0.0.1:9"), DIALECTS["openai"], patience=2)
    for _ in range(2):
        await sender.send(Prompt("hello"))
    async with FakeServer(lambda number, body: stream(2)).running() as server:
        sender._client = HttpClient(server.url)
        assert (await sender.send(Prompt("hello"))).complete
    assert sender.given_up and sender.gone == "Connection refused"


async def test_nothing_listens() -> None:
    answer = await Sender(HttpClient("http://127.0.0.1:9"), DIALECTS["openai"]).send(Prompt("hello"))
    assert answer.outcome is Outcome.UNREACHABLE and answer.detail == "Connection refused"


@pytest.mark.parametrize("options", [{"url": "http://h/é"}, {"url": "http://h", "api_key": "S3\nx"}])
async def test_what_http_cannot_carry_is_said_without_the_key(options: dict[str, str]) -> None:
    with pytest.raises(Unreachable, match="none that HTTP can carry") as refused:
        await HttpClient(**options).get("/info")
    assert "S3" not in str(refused.value)


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
async def test_a_name_that_cannot_be_looked_up_is_told(host: str) -> None:
    with pytest.raises(Unreachable):
        await HttpClient(f"http://{host}:1").get("/info")


def test_why_tls_failed_is_told_in_its_words() -> None:
    refused = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    refused.verify_message = "self-signed certificate"
    assert _reason(refused) == "its certificate is refused: self-signed certificate"
    other = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    other.reason = "WRONG_VERSION_NUMBER"
    assert _reason(other) == "no TLS: WRONG_VERSION_NUMBER"


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("openai", {"choices": [{"text": "abc"}], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}),
        ("chat", {"choices": [{"message": {}}], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}),
        ("tgi", [{"generated_text": "abc", "details": {"generated_tokens": 3}}]),
    ],
)
async def test_a_server_that_does_not_stream_answers_in_one_chunk(api: str, body: object) -> None:
    answer = await answer_to(Script(wait=0.1, body=body), api)
    assert answer.complete and not answer.streamed
    assert answer.output_tokens == 3 and answer.ttft == answer.e2e >= 0.1


async def test_without_usage_chunks_count_as_tokens() -> None:
    answer = await answer_to(Script(events=[(0, text("a")), (0, text("b", "stop"))]))
    assert answer.complete and not answer.counted and answer.output_tokens == 2


async def test_connections_are_kept_and_one_that_the_server_closed_is_no_failure() -> None:
    async with FakeServer(lambda number, body: stream(2)).running() as server:
        client = HttpClient(server.url)
        sender = Sender(client, DIALECTS["openai"])
        for _ in range(3):
            assert (await sender.send(Prompt("hello"))).complete
        assert server.connections == 1
        for task in server._tasks:
            task.cancel()
        answers = await asyncio.gather(*(sender.send(Prompt("hello")) for _ in range(4)))
        assert all(answer.complete for answer in answers) and server.connections == 5
        client.close()


async def test_lengths_are_fixed_where_the_server_can() -> None:
    async with FakeServer(lambda number, body: stream(2)).running() as server:
        client = HttpClient(server.url, api_key="secret-key")
        for dialect in DIALECTS.values():
            await Sender(client, dialect).send(Prompt("hello", tokens=7))
        client.close()
    openai, chat, tgi = server.bodies
    assert (openai["max_tokens"], openai["min_tokens"], openai["ignore_eos"]) == (7, 7, True)
    assert chat["max_tokens"] == 7 and "ignore_eos" not in chat
    assert tgi["parameters"] == {"max_new_tokens": 7, "details": True}
    assert all("authorization: Bearer secret-key\r\n" in head for head in server.heads)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_read_whatever_parts_they_come_in(size: int) -> None:
    sent = b": ping\n\ndata: one\r\n\r\nevent: x\ndata:two\ndata: three\n\ndata: rest"
    reader, found = EventReader(), []
    for start in range(0, len(sent), size):
        found += reader.feed(sent[start : start + size])
    assert found == [b"one", b"two\nthree"]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_lines_may_end_in_three_ways(end: bytes, size: int) -> None:
    sent = end.join([b"data: one", b"data: two", b"", b"data: three", b"", b"data: rest"])
    reader, found = EventReader(), []
    for start in range(0, len(sent), size):
        found += reader.feed(sent[start : start + size])
    assert found == [b"one\ntwo", b"three"]


def test_a_long_line_is_read_in_a_time_of_its_length() -> None:
    """In parts of a kilobyte: four times as long takes four times as long, not sixteen times."""

    def seconds(parts: int) -> float:
        reader, began = EventReader(), perf_counter()
        for _ in range(parts):
            reader.feed(b"x" * 1000)
        return perf_counter() - began

    assert min(seconds(4000) for _ in range(3)) < 9 * min(seconds(1000) for _ in range(3))

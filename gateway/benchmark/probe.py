"""Which API a server speaks, which model it has, and whether it knows `ignore_eos`: found out by asking it."""

import asyncio
from typing import Any

from gateway.benchmark import plain_json
from gateway.benchmark.connection import ConnectionLost, Reply
from gateway.benchmark.dialect import Chat, Completions, Dialect, Tgi
from gateway.benchmark.http_client import HttpClient, Unreachable
from gateway.benchmark.one_line import one_line, readable
from gateway.benchmark.options import BenchmarkOptions
from gateway.benchmark.prompt import Prompt
from gateway.benchmark.sampling import Sampling
from gateway.benchmark.sender import TIMEOUT

TGI_ROUTER = "text-generation-router"
UNKNOWN_FIELD = (400, 422)
NO_ROUTE = (404, 405, 501)
WRONG_KEY = (401, 403)
GUARDED = ("/v1/models", Completions.path, Chat.path)  # by the key that generating needs


class NoServer(Exception):
    """The server does not answer, or not so that it could be measured. The message says why."""


async def probe(client: HttpClient, options: BenchmarkOptions, *, chats: bool) -> Dialect:
    """The dialect to measure a server by. `chats`: whether the prompts are.

    A server that has both APIs is measured by OpenAI's, which can ask for answers of a fixed length. TGI itself is
    measured by its own, each of whose events is a token.

    Raises:
        NoServer: it cannot be reached, wants another key, or speaks none of them.
    """
    models, info = await _json(client, "/v1/models"), await _json(client, "/info")
    api = options.api if options.api != "auto" else await _api(client, models, info, chats=chats)
    if api == "tgi":
        if chats:
            raise NoServer(
                "chats cannot be sent to /generate_stream: leave --api tgi away, or take prompts with a text"
            )
        return Tgi(Sampling(options))
    model = options.model or _model(models) or _named(info)
    if not model:
        raise NoServer("the server names no model on /v1/models: add --model")
    return await _openai(client, options, model, chats=chats or api == "chat")


async def _openai(client: HttpClient, options: BenchmarkOptions, model: str, *, chats: bool) -> Dialect:
    """By a first request to each route that it may have: which there is, and whether it takes `ignore_eos`."""
    sampling = Sampling(options)
    chosen: list[type[Completions] | type[Chat]] = [Chat if chats else Completions]
    chosen += [Chat] if options.api == "auto" and not chats else []  # a server may have chats only
    for kind in chosen:
        reply = await _first(client, kind(model, sampling, lengths=True), options.timeout or TIMEOUT)
        if reply.status not in NO_ROUTE:
            return kind(model, sampling, lengths=reply.status not in UNKNOWN_FIELD)
    said = f"{reply.status} {readable(bytes(reply.body))}".strip()
    raise NoServer(f"{client.url} has no {kind.path}, or no model {one_line(model)!r} ({said}): add --api or --model")


async def _api(client: HttpClient, models: Any, info: Any, *, chats: bool) -> str:
    is_tgi = isinstance(info, dict) and info.get("router") == TGI_ROUTER
    if models is not None and (chats or not is_tgi or await _json(client, "/version") is not None):
        return "chat" if chats else "openai"
    if is_tgi or (isinstance(info, dict) and "max_total_tokens" in info):
        return "tgi"
    raise NoServer("the server has neither /v1/models nor TGI's /info: add --api, and --model for OpenAI's")


async def _first(client: HttpClient, dialect: Completions | Chat, timeout: float) -> Reply:
    try:
        async with asyncio.timeout(timeout):
            return await _asked(client, dialect.path, dialect.body(Prompt("Hello", tokens=1)))
    except TimeoutError:
        raise NoServer(f"{client.url} does not answer a first request within {timeout:g} s") from None


async def _json(client: HttpClient, target: str) -> Any:
    """What a GET answers; None if it answers something else."""
    reply = await _asked(client, target)
    try:
        return plain_json.loads(bytes(reply.body).decode()) if reply.status == 200 else None
    except ValueError:
        return None


async def _asked(client: HttpClient, target: str, body: dict[str, Any] | None = None) -> Reply:
    """The answer to a POST of `body`, or to a GET without one. Raises NoServer."""
    try:
        reply = await (client.get(target) if body is None else client.post(target, body))
    except (Unreachable, ConnectionLost) as error:
        raise NoServer(f"{client.url} cannot be reached: {error}") from None
    if reply.status in WRONG_KEY and target in GUARDED:
        raise NoServer(f"{client.url} refuses the key ({reply.status}): set API_KEY to one that it takes")
    if 300 <= reply.status < 400 and target in GUARDED:
        place = one_line(reply.headers.get("location", "elsewhere").removesuffix(target))
        raise NoServer(f"{client.url} redirects {target} ({reply.status}) to {place}: give that URL")
    return reply


def _model(models: Any) -> str:
    listed = models.get("data") if isinstance(models, dict) else None
    first = listed[0] if isinstance(listed, list) and listed else None
    return str(first["id"]) if isinstance(first, dict) and first.get("id") else ""


def _named(info: Any) -> str:
    return str(info.get("model_id") or "") if isinstance(info, dict) else ""

"""OpenAI's routes, and vLLM's helper routes. What is specific to one of them is in the module of its name."""

import time
from functools import partial

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import JSONResponse

from gateway import __version__
from gateway.http.body import read_body
from gateway.http.encoding import in_thread
from gateway.http.openapi import answers, takes
from gateway.request.adapters import find_adapter
from gateway.request.gateway_state import Gateway, gateway_of
from gateway.request.lifecycle import serving
from gateway.routes.openai import chat, completions, embeddings, responses, tokens, validation
from gateway.routes.openai.embeddings import EmbeddingRequest
from gateway.routes.openai.errors import OpenAIRoute
from gateway.routes.openai.identity import request_id
from gateway.routes.openai.models import cards, listed
from gateway.routes.openai.priority import with_priority
from gateway.routes.openai.respond import respond, respond_whole
from gateway.routes.openai.schemas import BatchRequest, ChatRequest, CompletionRequest
from gateway.routes.openai.tokens import Detokenize

router = APIRouter(prefix="/v1", route_class=OpenAIRoute, default_response_class=Response, tags=["OpenAI"])
helpers = APIRouter(route_class=OpenAIRoute, default_response_class=Response, tags=["OpenAI"])  # vLLM's, outside /v1


@router.post(
    "/chat/completions",
    openapi_extra=takes(ChatRequest) | answers(responses.ChatCompletion, events=responses.CHAT_EVENTS),
)
async def chat_completions(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The next message of a chat."""
    arrival = time.perf_counter()
    body = with_priority(await read_body(request, ChatRequest), request)
    body = validation.with_server_options(body, gateway)
    return await respond(request, gateway, body, arrival, partial(chat.begin, request, gateway, body))


@router.post("/chat/completions/batch", openapi_extra=takes(BatchRequest) | answers(responses.ChatCompletion))
async def chat_batch(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The next message of each of several chats, a choice each, as vLLM."""
    arrival = time.perf_counter()
    body = with_priority(await read_body(request, BatchRequest), request)
    body = validation.with_server_options(body, gateway)
    request_id(request, body.request_id)
    validation.check_count(len(body.messages), "messages", "chats", gateway.options)
    chats = await in_thread(lambda: body.chats, when=body.constraint is not None)  # each is checked again
    return await respond_whole(request, gateway, body, arrival, partial(chat.begin_batch, gateway, chats))


@router.post(
    "/completions", openapi_extra=takes(CompletionRequest) | answers(responses.Completion, events=responses.TEXT_EVENTS)
)
async def text_completions(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The text that follows a prompt."""
    arrival = time.perf_counter()
    body = with_priority(await read_body(request, CompletionRequest), request)
    body = validation.with_server_options(body, gateway)
    return await respond(request, gateway, body, arrival, partial(completions.begin, gateway, body))


@router.post("/embeddings", openapi_extra=takes(EmbeddingRequest) | answers(responses.Embeddings))
async def embedded(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """Texts as vectors."""
    arrival = time.perf_counter()
    return await embeddings.respond(request, gateway, await read_body(request, EmbeddingRequest), arrival)


@router.get("/models", openapi_extra=answers(responses.Cards))
async def models(gateway: Gateway = Depends(gateway_of)) -> Response:
    """The one model this server serves, by each of its names, and its adapters."""
    _, description = serving(gateway)
    if gateway.options.allow_runtime_lora_updating:
        await gateway.engine.adapters.refresh()
    return JSONResponse(listed(cards(gateway, description)))


@router.get("/models/{name:path}", openapi_extra=answers(responses.Card))
async def model(name: str, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The model or adapter of that name."""
    _, description = serving(gateway)
    await find_adapter(gateway, name)
    for card in cards(gateway, description):
        if card["id"] == name:
            return JSONResponse(card)
    raise validation.no_such_model(name, gateway, description)


@helpers.post("/detokenize", openapi_extra=takes(Detokenize) | answers(responses.Text))
async def detokenize(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The text of token ids."""
    return await tokens.detokenize(request, gateway)


@helpers.get("/tokenizer_info", openapi_extra=answers(responses.TokenizerInfo))
async def tokenizer_info(gateway: Gateway = Depends(gateway_of)) -> Response:
    """The names of the special tokens, and the chat template: what lm-eval needs to do without the model's files."""
    return await tokens.info(gateway)


@helpers.get("/version", openapi_extra=answers(responses.Version))
async def version() -> Response:
    """Of this server."""
    return JSONResponse({"version": __version__})


@helpers.get("/load", openapi_extra=answers(responses.Load))
async def load(gateway: Gateway = Depends(gateway_of)) -> Response:
    """Sequences in work, over all clients."""
    return JSONResponse({"server_load": gateway.admission.active})

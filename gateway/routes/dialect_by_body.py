"""Routes that two dialects share. The fields of the body tell the dialect: `inputs` is TGI's, `messages`, `prompt`
and `input` are OpenAI's. Errors are worded in the dialect of the body, and in TGI's if the body is of neither.
"""

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Depends, Request, Response

from gateway.errors import Kind, RequestError
from gateway.http.body import field_names, read_body
from gateway.http.encoding import json_list, json_text
from gateway.http.openapi import answers, refusals, takes
from gateway.request.gateway_state import Gateway, gateway_of
from gateway.request.lifecycle import serving
from gateway.request.written_images import spans_of_written
from gateway.routes.openai import routes as openai
from gateway.routes.openai import tokens
from gateway.routes.openai.chat_prompt import spans_of_chat, with_written_images
from gateway.routes.openai.embeddings import EmbeddingRequest
from gateway.routes.openai.errors import RESPONSES as OPENAI_ERRORS
from gateway.routes.openai.errors import SCHEMA as OPENAI_SCHEMA
from gateway.routes.openai.errors import with_error_answers
from gateway.routes.openai.responses import ChatCompletion, Completion, Embeddings, Tokens
from gateway.routes.openai.schemas import ChatRequest, CompletionRequest
from gateway.routes.tgi import routes as tgi
from gateway.routes.tgi.errors import RESPONSES as TGI_ERRORS
from gateway.routes.tgi.errors import SCHEMA as TGI_SCHEMA
from gateway.routes.tgi.errors import TgiRoute
from gateway.routes.tgi.responses import Generation, Span, TemplatedChat
from gateway.routes.tgi.schemas import GenerateRequest, TokenizeInputs
from gateway.text.tokenizer import TokenSpan

Handler = Callable[[Request, Gateway], Awaitable[Response]]

router = APIRouter(route_class=TgiRoute, default_response_class=Response, tags=["Text Generation Inference"])


EITHER = refusals({*TGI_ERRORS, *OPENAI_ERRORS}, {"anyOf": [TGI_SCHEMA, OPENAI_SCHEMA]})


@router.post(
    "/invocations",
    openapi_extra=takes(GenerateRequest, ChatRequest, CompletionRequest, EmbeddingRequest)
    | answers(list[Generation], ChatCompletion, Completion, Embeddings, events="those of the route whose body it is"),
    responses=EITHER,
)
async def invocations(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """SageMaker's route: the body of `/`, of a chat, of a completion or of embeddings, and that route's answer."""
    return await _by_body(
        request,
        gateway,
        inputs=tgi.compatible,
        messages=openai.chat_completions,
        prompt=openai.text_completions,
        input=openai.embedded,
    )


@router.post(
    "/tokenize",
    openapi_extra=takes(TokenizeInputs, tokens.TokenizeChat, tokens.TokenizeText) | answers(list[Span], Tokens),
    responses=EITHER,
)
async def tokenize(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The tokens of a text: with their byte ranges for `inputs`, as TGI; ids and their count otherwise, as vLLM."""
    return await _by_body(
        request, gateway, inputs=_tokenize_inputs, messages=tokens.tokenize_chat, prompt=tokens.tokenize_text
    )


@router.post("/chat_tokenize", openapi_extra=takes(ChatRequest) | answers(TemplatedChat))
async def chat_tokenize(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """A chat as the text that its template makes of it, and that text's tokens."""
    body = await read_body(request, ChatRequest)
    model, _ = serving(gateway)
    text, spans = await spans_of_chat(gateway, model, with_written_images(gateway, body))
    listed = await asyncio.to_thread(_listed, spans)
    content = f'{{"tokenize_response":{listed},"templated_text":{json_text(text)}}}'
    return Response(content, media_type="application/json")


async def _tokenize_inputs(request: Request, gateway: Gateway) -> Response:
    body = await read_body(request, TokenizeInputs)
    model, _ = serving(gateway)
    spans = await spans_of_written(gateway, model, body.inputs, field="inputs")
    return Response(await asyncio.to_thread(_listed, spans), media_type="application/json")


async def _by_body(request: Request, gateway: Gateway, *, inputs: Handler, **of_openai: Handler) -> Response:
    """The answer of the handler whose name is a field of the body."""
    names = await field_names(request)
    if "inputs" in names:
        return await inputs(request, gateway)
    for name, handler in of_openai.items():
        if name in names:
            return await with_error_answers(request, handler(request, gateway))
    known, last = ", ".join(f"`{name}`" for name in ("inputs", *list(of_openai)[:-1])), list(of_openai)[-1]
    raise RequestError(Kind.SHAPE, f"the body needs {known} or `{last}`")


def _listed(spans: list[TokenSpan]) -> str:
    return json_list(
        f'{{"id":{each.id},"text":{json_text(each.text)},"start":{each.start},"stop":{each.stop}}}' for each in spans
    )

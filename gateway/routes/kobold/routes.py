"""KoboldAI's and KoboldCpp's routes. Those of `/api/v1` are those of `/api/latest`, too."""

import time
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import JSONResponse

from gateway.errors import RequestError
from gateway.http.body import StrictModel, read_body
from gateway.http.openapi import answers, takes
from gateway.request.gateway_state import Gateway, gateway_of
from gateway.routes.kobold import generate, info, responses, tokens
from gateway.routes.kobold.errors import KoboldRoute
from gateway.routes.kobold.schemas import GenerateBody, NamedBody
from gateway.routes.kobold.tokens import CountBody, DetokenizeBody

NAMED = takes(NamedBody, None, required=False)
router = APIRouter(prefix="/api", route_class=KoboldRoute, default_response_class=Response, tags=["KoboldAI"])
Handler = Callable[..., Any]


class SoftPromptBody(StrictModel):
    value: str


def versioned(method: Callable[..., Callable[[Handler], Handler]], path: str, extra: dict[str, Any]) -> Any:
    """Register a handler below each of the two names that the version has."""

    def register(handler: Handler) -> Handler:
        for version in ("v1", "latest"):
            method(f"/{version}{path}", openapi_extra=extra)(handler)
        return handler

    return register


@versioned(router.post, "/generate", takes(GenerateBody) | answers(responses.Generated))
async def generate_whole(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The text that follows a prompt."""
    arrival = time.perf_counter()
    return await generate.respond(request, gateway, await read_body(request, GenerateBody), arrival)


@router.post("/extra/generate/stream", openapi_extra=takes(GenerateBody) | answers(events=responses.EVENTS))
async def generate_stream(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The text that follows a prompt, piece by piece."""
    arrival = time.perf_counter()
    return await generate.stream(request, gateway, await read_body(request, GenerateBody), arrival)


@router.get("/extra/generate/check", openapi_extra=answers(responses.Checked))
async def check_unnamed() -> Response:
    """No text: a generation must be named to be seen."""
    return JSONResponse({"results": [{"text": ""}]})


@router.post("/extra/generate/check", openapi_extra=NAMED | answers(responses.Checked))
async def check(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The text so far of a generation that was begun with a `genkey` and the same API key."""
    return await generate.check(request, gateway)


@router.post("/extra/abort", openapi_extra=NAMED | answers(responses.Aborted))
async def abort(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """Ends what was begun with a `genkey` and the same API key; without one, nothing."""
    return await generate.abort(request, gateway)


@router.post("/extra/tokencount", openapi_extra=takes(CountBody) | answers(responses.Tokens))
@router.post("/extra/tokenize", openapi_extra=takes(CountBody) | answers(responses.Tokens))
async def count(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The token ids of a text, and their number."""
    return await tokens.count(request, gateway)


@router.post("/extra/detokenize", openapi_extra=takes(DetokenizeBody) | answers(responses.Detokenized))
async def detokenize(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The text of token ids."""
    return await tokens.detokenize(request, gateway)


@versioned(router.get, "/model", answers(responses.Name))
async def model(gateway: Gateway = Depends(gateway_of)) -> Response:
    """The model's name, behind `koboldcpp/`."""
    return JSONResponse({"result": info.model(gateway)})


@versioned(router.get, "/info/version", answers(responses.Name))
async def protocol_version() -> Response:
    """The version of KoboldAI's protocol."""
    return JSONResponse({"result": info.PROTOCOL})


@router.get("/extra/version", openapi_extra=answers(responses.Version))
async def version(gateway: Gateway = Depends(gateway_of)) -> Response:
    """The version of KoboldCpp whose routes these are, and what of it is served."""
    return JSONResponse(info.version(gateway))


@versioned(router.get, "/config/max_length", answers(responses.Number))
async def max_length(gateway: Gateway = Depends(gateway_of)) -> Response:
    """Tokens of the longest answer."""
    return JSONResponse({"value": info.max_length(gateway)})


@router.get("/extra/true_max_context_length", openapi_extra=answers(responses.Number))
@versioned(router.get, "/config/max_context_length", answers(responses.Number))
async def context_length(gateway: Gateway = Depends(gateway_of)) -> Response:
    """Tokens of the context."""
    return JSONResponse({"value": info.context_length(gateway)})


@versioned(router.get, "/config/soft_prompt", answers(responses.SoftPrompt))
async def soft_prompt() -> Response:
    """None is loaded."""
    return JSONResponse({"value": ""})


@versioned(router.put, "/config/soft_prompt", takes(SoftPromptBody) | answers(responses.Empty))
async def load_soft_prompt(request: Request) -> Response:
    """Takes the name of none only."""
    if (await read_body(request, SoftPromptBody)).value:
        raise RequestError.invalid("soft prompts are not supported: value must be empty", "value")
    return JSONResponse({})


@versioned(router.get, "/config/soft_prompts_list", answers(responses.SoftPrompts))
async def soft_prompts() -> Response:
    """There are none."""
    return JSONResponse({"values": []})


@router.get("/extra/preloadstory", openapi_extra=answers(responses.Empty))
async def story() -> Response:
    """There is none."""
    return JSONResponse({})


@router.get("/extra/perf", openapi_extra=answers(responses.Performance))
async def performance(gateway: Gateway = Depends(gateway_of)) -> Response:
    """How fast the last answer was, and how busy the server is."""
    return JSONResponse(info.performance(gateway))

"""Texts to ids and back: `/api/extra/tokencount`, of which `/tokenize` is another name, and `/api/extra/detokenize`."""

from collections.abc import Awaitable
from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import Field
from starlette.responses import JSONResponse

from gateway.errors import RequestError
from gateway.http.body import StrictModel, read_body
from gateway.http.encoding import in_thread
from gateway.request.gateway_state import Gateway
from gateway.request.lifecycle import serving
from gateway.routes.kobold.errors import WORDING, error_response
from gateway.routes.openai import validation
from gateway.routes.openai.tokens import MAX_IDS

MANY = 10_000  # ids, which take 2 ms to encode
Id = Annotated[int, Field(ge=0, le=2**31 - 1)]


class CountBody(StrictModel):
    prompt: str
    special: bool = True  # whether special tokens are added, as in front of every prompt


class DetokenizeBody(StrictModel):
    ids: Annotated[list[Id], Field(max_length=MAX_IDS, fail_fast=True)]
    special: bool = False  # whether special tokens show


async def count(request: Request, gateway: Gateway) -> Response:
    return await _answered(_count(request, gateway), value=-1)


async def detokenize(request: Request, gateway: Gateway) -> Response:
    return await _answered(_detokenize(request, gateway), result="", success=False)


async def _answered(work: Awaitable[Response], **failed: Any) -> Response:
    """The answer of `work`; one to a wrong body has the fields that KoboldCpp's clients look for, too."""
    try:
        return await work
    except RequestError as error:
        if WORDING[error.kind][0] != 400:
            raise
        return error_response(error, **failed)


async def _count(request: Request, gateway: Gateway) -> Response:
    body = await read_body(request, CountBody)
    model, _ = serving(gateway)
    ids = await model.encode(body.prompt, add_special_tokens=body.special, field="prompt")
    return await in_thread(lambda: JSONResponse({"value": len(ids), "ids": ids}), when=len(ids) > MANY)


async def _detokenize(request: Request, gateway: Gateway) -> Response:
    body = await read_body(request, DetokenizeBody)
    model, description = serving(gateway)
    validation.refuse_unknown_ids(body.ids, description.vocab_size, "ids")
    text = await model.decode(body.ids, skip_special_tokens=not body.special)
    return JSONResponse({"result": text, "success": True})

"""vLLM's routes by which clients load and unload adapters, with `--allow-runtime-lora-updating` only.

A path is a directory of the server's machine, absolute, or an id on the hub. What is wrong with an adapter is told in
the engine's words, without the paths of the server's own directories.
"""

import re
from collections.abc import Callable

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import PlainTextResponse

from gateway.config.options import ALIASES
from gateway.errors import Kind, RequestError
from gateway.http.body import StrictModel, read_body
from gateway.http.openapi import takes
from gateway.request.gateway_state import Gateway, gateway_of
from gateway.request.lifecycle import serving
from gateway.routes.openai.errors import OpenAIRoute
from gateway.routes.openai.identity import names
from jaxengine.options.adapters import check_name, check_path

DIRECTORY = re.compile(r"(?<![\w.:/])[~/](?:[^\s'\"`,:]*/)+")
TEXT = {"responses": {"200": {"content": {"text/plain": {"schema": {"type": "string"}}}}}}

router = APIRouter(prefix="/v1", route_class=OpenAIRoute, default_response_class=Response, tags=["OpenAI"])


class LoadAdapter(StrictModel):
    """With `load_inplace` the adapter takes the place of the one of its name."""

    lora_name: str
    lora_path: str
    load_inplace: bool | None = None


class UnloadAdapter(StrictModel):
    lora_name: str


@router.post("/load_lora_adapter", openapi_extra=takes(LoadAdapter) | TEXT)
async def load_lora_adapter(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """Serve an adapter, by a name that requests may give as `model`; running streams go on meanwhile."""
    body = await read_body(request, LoadAdapter)
    _, description = serving(gateway)
    name, path, in_place = body.lora_name, body.lora_path, bool(body.load_inplace)
    _check(check_name, name, "lora_name")
    _check(check_path, path, "lora_path")
    if not path.startswith(("/", "~")) and {".", ".."} & {*path.split("/")}:
        raise RequestError.invalid("lora_path must be an absolute path or an id on the hub", "lora_path")
    if name in (*names(gateway.options, description), *ALIASES):
        raise RequestError.invalid(f"the lora adapter name '{name}' is a name of the model itself", "lora_name")
    adapters = gateway.engine.adapters
    await adapters.refresh()
    if name in adapters.served and not in_place:
        message = f"the lora adapter '{name}' has already been loaded: set load_inplace to true to replace it"
        raise RequestError.invalid(message, "lora_name")
    try:
        await adapters.load(name, path, in_place=in_place)
    except RequestError as error:
        error.message = without_directories(error.message, path)
        error.param = error.param or ("lora_path" if error.kind in (Kind.INVALID, Kind.MODEL_NOT_FOUND) else None)
        raise
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


@router.post("/unload_lora_adapter", openapi_extra=takes(UnloadAdapter) | TEXT)
async def unload_lora_adapter(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """Serve an adapter no more; requests that run with it end with it."""
    body = await read_body(request, UnloadAdapter)
    serving(gateway)
    _check(check_name, body.lora_name, "lora_name")
    try:
        await gateway.engine.adapters.unload(body.lora_name)
    except RequestError as error:
        if error.kind is Kind.MODEL_NOT_FOUND:
            error.message, error.param = f"the lora adapter '{body.lora_name}' cannot be found", "lora_name"
        raise
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _check(check: Callable[[str], None], text: str, param: str) -> None:
    try:
        check(text)
    except ValueError as error:
        raise RequestError.invalid(f"{param}: {error}", param) from None


def without_directories(message: str, given: str) -> str:
    """`message` with directories left out, except the one that the client has `given` and those within."""
    others = message.split(given) if given.startswith("/") else [message]
    return given.join(DIRECTORY.sub("", other) for other in others)

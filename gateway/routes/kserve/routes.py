"""The HTTP routes of KServe's version 2 and of Triton's extensions. gRPC has the same calls, see `gateway.grpc`."""

import time
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import JSONResponse

from gateway.errors import RequestError
from gateway.http.body import parse_body
from gateway.http.openapi import answers, takes
from gateway.request.gateway_state import Gateway, gateway_of
from gateway.routes.kserve import generate, infer, metadata, responses
from gateway.routes.kserve.binary import read_parts
from gateway.routes.kserve.errors import KServeRoute
from gateway.routes.kserve.model_path import ModelPath, model_in_path, of_model, path_parameters
from gateway.routes.kserve.models import find_model, served_models
from gateway.routes.kserve.schemas import GenerateBody, IndexBody, InferBody
from gateway.routes.kserve.settings import FIXED, LOG_SETTINGS, NO_SHARED_MEMORY, SETTINGS, TRACE_SETTINGS

INDEX = takes(IndexBody, required=False) | answers(list[responses.IndexEntry])
REFUSING: dict[str, Any] = {"description": "Refused: the answer is always 400"}
MEMORY = ("system", "cuda")  # kinds of shared memory

router = APIRouter(prefix="/v2", route_class=KServeRoute, default_response_class=Response, tags=["KServe"])
probes = APIRouter(prefix="/v2/health", route_class=KServeRoute, default_response_class=Response, tags=["KServe"])


@probes.get("/live", openapi_extra=answers(responses.Live))
async def live(gateway: Gateway = Depends(gateway_of)) -> Response:
    """Whether the server runs."""
    return JSONResponse({"live": gateway.alive}, 200 if gateway.alive else 503)


@probes.get("/ready", openapi_extra=answers(responses.Ready))
async def ready(gateway: Gateway = Depends(gateway_of)) -> Response:
    """Whether a request that is sent now is served."""
    return JSONResponse({"ready": gateway.all_ready}, 200 if gateway.all_ready else 503)


@router.get("", openapi_extra=answers(responses.ServerMetadata))
async def server() -> Response:
    """Name, version and extensions of the server."""
    return JSONResponse(metadata.server())


@router.get("/models", openapi_extra=answers(responses.ModelList))
async def models(gateway: Gateway = Depends(gateway_of)) -> Response:
    """The names of the models, as KServe lists them."""
    return JSONResponse({"models": [each.name for each in served_models(gateway)]})


@router.get("/models/stats", openapi_extra=answers(responses.Statistics))
async def all_statistics(gateway: Gateway = Depends(gateway_of)) -> Response:
    """What every model has answered, and how long the parts of it took."""
    return JSONResponse({"model_stats": metadata.statistics(gateway, served_models(gateway))})


@of_model(router.get, "/stats", answers(responses.Statistics))
async def model_statistics(
    gateway: Gateway = Depends(gateway_of), named: ModelPath = Depends(model_in_path)
) -> Response:
    """What a model has answered, and how long the parts of it took."""
    model = await find_model(gateway, *named)
    return JSONResponse({"model_stats": metadata.statistics(gateway, [model])})


@of_model(router.get, "/ready", answers(responses.ModelReady))
async def model_ready(gateway: Gateway = Depends(gateway_of), named: ModelPath = Depends(model_in_path)) -> Response:
    """Whether a model can be asked."""
    await find_model(gateway, *named)
    return JSONResponse({"name": named.model, "ready": gateway.all_ready}, 200 if gateway.all_ready else 503)


@of_model(router.get, "/config", answers(responses.ModelConfig))
async def model_config(gateway: Gateway = Depends(gateway_of), named: ModelPath = Depends(model_in_path)) -> Response:
    """A model's configuration, as Triton has it."""
    model = await find_model(gateway, *named)
    return JSONResponse(metadata.model_config(named.model, model.signature))


@of_model(router.post, "/infer", takes(InferBody) | answers(responses.Inference, binary=True))
async def model_infer(
    request: Request, gateway: Gateway = Depends(gateway_of), named: ModelPath = Depends(model_in_path)
) -> Response:
    """Tensors in, tensors out. Behind the JSON of a body, and of an answer, there may be tensors in binary."""
    return await infer.respond(request, gateway, *named, time.perf_counter())


@of_model(router.post, "/generate", takes(GenerateBody) | answers(responses.Generated))
async def model_generate(
    request: Request, gateway: Gateway = Depends(gateway_of), named: ModelPath = Depends(model_in_path)
) -> Response:
    """Tensors as plain fields, and one answer."""
    return await generate.respond(request, gateway, *named, time.perf_counter())


@of_model(router.post, "/generate_stream", takes(GenerateBody) | answers(events=responses.EVENTS))
async def model_generate_stream(
    request: Request, gateway: Gateway = Depends(gateway_of), named: ModelPath = Depends(model_in_path)
) -> Response:
    """Tensors as plain fields, and an event for each response: with `stream`, for each piece of the text."""
    return await generate.stream(request, gateway, *named, time.perf_counter())


@of_model(router.get, "", answers(responses.ModelMetadata))
async def model_metadata(gateway: Gateway = Depends(gateway_of), named: ModelPath = Depends(model_in_path)) -> Response:
    """The tensors that a model takes and answers."""
    model = await find_model(gateway, *named)
    return JSONResponse(metadata.model_metadata(named.model, model.signature))


@router.post("/repository/index", openapi_extra=INDEX)
@router.post("/repository/{repository}/index", openapi_extra=path_parameters("repository") | INDEX)
async def index(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """All models, each of which is ready."""
    raw, _ = await read_parts(request, gateway.payload_limit)
    if raw:
        await parse_body(raw, IndexBody)
    return JSONResponse(metadata.index(gateway))


@router.post("/repository/models/{model:model_name}/load", openapi_extra=REFUSING)
@router.post("/repository/models/{model:model_name}/unload", openapi_extra=REFUSING)
async def load(model: str) -> Response:
    """Refused: the model is the one that the server was started with."""
    raise RequestError.invalid(FIXED)


@router.get("/logging", openapi_extra=answers(responses.LogSettings))
async def log_settings() -> Response:
    """How the server logs."""
    return JSONResponse(LOG_SETTINGS)


@router.get("/trace/setting", openapi_extra=answers(responses.TraceSettings))
@of_model(router.get, "/trace/setting", answers(responses.TraceSettings))
async def trace_settings() -> Response:
    """How the server traces in Triton's way: not at all. OpenTelemetry's is set by the server's options."""
    return JSONResponse(TRACE_SETTINGS)


@router.post("/logging", openapi_extra=REFUSING)
@router.post("/trace/setting", openapi_extra=REFUSING)
@of_model(router.post, "/trace/setting", REFUSING)
async def change_settings() -> Response:
    """Refused: settings are the server's options."""
    raise RequestError.invalid(SETTINGS)


async def memory_status() -> Response:
    """The regions of shared memory: none."""
    return JSONResponse([])


async def use_memory() -> Response:
    """Refused: tensors travel in the request and the answer."""
    raise RequestError.invalid(NO_SHARED_MEMORY)


for kind in MEMORY:
    for region in ("", "/region/{name}"):
        base, extra = f"/{kind}sharedmemory{region}", path_parameters("name") if region else {}
        router.get(f"{base}/status", openapi_extra=extra | answers(list[responses.Empty]))(memory_status)
        for work in ("register", "unregister") if region else ("unregister",):
            router.post(f"{base}/{work}", openapi_extra=extra | REFUSING)(use_memory)

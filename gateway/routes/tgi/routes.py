"""TGI's routes: `/generate`, `/generate_stream`, `POST /` and `/info`.

Where they differ from TGI 3, and why, is a table in `docs/clients.md`.
"""

import dataclasses
import time

from fastapi import APIRouter, Depends, Request, Response
from starlette.responses import JSONResponse

from gateway.http.body import read_body
from gateway.http.openapi import answers, takes
from gateway.request.gateway_state import Gateway, gateway_of
from gateway.request.lifecycle import serving
from gateway.routes.tgi.errors import TgiRoute
from gateway.routes.tgi.generate import answer, stream
from gateway.routes.tgi.responses import EVENTS, Generation, Info
from gateway.routes.tgi.schemas import GenerateRequest

BODY = takes(GenerateRequest)
VERSION = "3.3.6-dev0"  # of TGI, whose contract this is: clients branch on it

router = APIRouter(route_class=TgiRoute, default_response_class=Response, tags=["Text Generation Inference"])


@router.post("/generate", openapi_extra=BODY | answers(Generation))
async def generate(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """One answer."""
    arrival = time.perf_counter()
    body = await read_body(request, GenerateRequest)
    return await answer(request, gateway, body, arrival, full_text=bool(body.settings.return_full_text))


@router.post("/generate_stream", openapi_extra=BODY | answers(events=EVENTS))
async def generate_stream(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """One event per token."""
    arrival = time.perf_counter()
    body = await read_body(request, GenerateRequest)
    return await stream(request, gateway, body, arrival, full_text=bool(body.settings.return_full_text))


@router.post("/", openapi_extra=BODY | answers(list[Generation], events=EVENTS))
async def compatible(request: Request, gateway: Gateway = Depends(gateway_of)) -> Response:
    """The Inference API's route: `stream` chooses the form, and a whole answer is an array of one. It holds the prompt
    too by default, unless the model writes a new text instead of continuing the prompt.
    """
    arrival = time.perf_counter()
    body = await read_body(request, GenerateRequest)
    wanted, model = body.settings.return_full_text, gateway.text_loader.current
    full_text = (model is None or model.continues) if wanted is None else wanted
    if body.stream:
        return await stream(request, gateway, body, arrival, full_text=full_text)
    return await answer(request, gateway, body, arrival, full_text=full_text, in_array=True)


@router.get("/info", openapi_extra=answers(Info))
async def info(gateway: Gateway = Depends(gateway_of)) -> Response:
    """What is served, and within which limits."""
    model, description = serving(gateway)
    options = gateway.options
    fields = {
        "model_id": description.model_id,
        "model_sha": description.revision or None,
        "model_pipeline_tag": "text-generation" if model.continues else "text2text-generation",
        "model_dtype": description.dtype,
        "quantize": options.quantize,
        "kv_cache_dtype": options.kv_cache_dtype,
        "speculate": description.max_draft_tokens,
        "model_device_type": description.device_kind,
        "max_concurrent_requests": options.max_concurrent_requests,
        "max_best_of": options.max_best_of,
        "max_stop_sequences": options.max_stop_sequences,
        "max_input_tokens": gateway.max_input_tokens,
        "max_total_tokens": description.max_total_tokens,
        "max_batch_total_tokens": description.max_batch_total_tokens,
        "validation_workers": options.validation_workers,
        "max_client_batch_size": options.max_client_batch_size,
        **gateway.formats(model).names,
        "router": "text-generation-router",
        "version": VERSION,
        "sha": None,
        "docker_label": None,
    }
    if (sight := gateway.pictures.sight) is not None:
        sizes = {"max_image_size": options.max_image_size, "max_image_pixels": options.max_image_pixels}
        fields |= {"max_images": sight.most, **sizes, "image_payload_limit": gateway.payload_limit}
    replicas = [dataclasses.asdict(each) for each in gateway.engine.replicas]
    return JSONResponse(fields | ({"replicas": replicas} if len(replicas) > 1 else {}))

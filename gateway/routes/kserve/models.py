"""Which models the protocol shows, and under which names."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from gateway.errors import ClientGone, Kind, RequestError
from gateway.observability.request_stats import RequestStats
from gateway.observability.sink import Inference, InferenceFailure
from gateway.request.gateway_state import Gateway
from gateway.request.info import RequestInfo
from gateway.request.lifecycle import serving
from gateway.routes.kserve.inference import VERSION, InferRequest, InferResponse, Model, check
from gateway.routes.kserve.logits_model import LogitsModel
from gateway.routes.kserve.text_model import TextModel
from gateway.routes.kserve.tokenizer_model import TokenizerModel
from gateway.routes.openai import validation
from gateway.routes.openai.identity import names

# What the served model is called in configurations of Triton: TensorRT-LLM's two entry points, and vLLM's example.
ALIASES = ("ensemble", "tensorrt_llm_bls", "vllm_model")
TOKENIZER, LOGITS = "_tokenizer", "_logits"  # ends of the names of the model's two companions
NEWEST = ("", "-1")  # versions that mean the newest, as VERSION does by number


def served_models(gateway: Gateway) -> list[Model]:
    """All, by their own names. Raises EngineUnavailable."""
    _, description = serving(gateway)
    name = names(gateway.options, description)[0]
    found: list[Model] = [] if description.embeds_only else [_text_model(gateway, name)]
    found.append(TokenizerModel(name + TOKENIZER))
    if description.logits:
        found.append(LogitsModel(name + LOGITS))
    return found


async def find_model(gateway: Gateway, name: str, version: str = "") -> Model:
    """The model that a client calls `name`; an adapter is one too.

    Raises:
        EngineUnavailable: no model is served yet.
        RequestError: there is no such model, or it has no such version.
    """
    _, description = serving(gateway)
    if version not in (VERSION, *NEWEST):
        raise RequestError(Kind.MODEL_NOT_FOUND, f"every model here has the version {VERSION} only", param="version")
    if not name:
        raise RequestError.invalid("the name of the model is missing", "model_name")
    own = names(gateway.options, description)
    for served in served_models(gateway):
        companion = served.name.removeprefix(own[0])
        if any(name == each + companion for each in (*own, *ALIASES)):
            return served
    return _text_model(gateway, own[0], await validation.check_model(name, gateway, description))


def _text_model(gateway: Gateway, name: str, adapter: str = "") -> TextModel:
    return TextModel(name, adapter, sees=gateway.pictures.sight is not None)


async def infer(
    gateway: Gateway, info: RequestInfo, model: Model, request: InferRequest
) -> AsyncGenerator[InferResponse, None]:
    """The responses of `model`, counted. Raises RequestError."""
    model = _meant(model, request)
    first: float | None = None
    try:
        check(model.signature, request)
        async with aclosing(model.infer(gateway, replace(info, timeout=request.timeout), request)) as responses:
            async for response in responses:
                first = time.perf_counter() - info.arrival if first is None else first
                yield response
    except BaseException as error:
        gateway.metrics.inference_failed(model.name, _reason(error))
        raise _in_its_time(error, request, gateway.options.request_timeout) from None
    gateway.metrics.inference_succeeded(_inference(model, info, response.stats, first or 0.0))


async def infer_once(gateway: Gateway, info: RequestInfo, model: Model, request: InferRequest) -> InferResponse:
    """The one response of a request that does not stream. Raises RequestError."""
    async with aclosing(infer(gateway, info, model, request)) as responses:
        [response] = [response async for response in responses]
    return response


def _meant(model: Model, request: InferRequest) -> Model:
    """`model`; its logits where it reads texts and the request has ids. By the model's own name clients ask for logits
    whose servers have the bare network under it, as ONNX exports are served.
    """
    if isinstance(model, TextModel) and not model.adapter and "input_ids" in request.inputs:
        return model if "text_input" in request.inputs else LogitsModel(model.name + LOGITS)
    return model


def _inference(model: Model, info: RequestInfo, stats: RequestStats | None, first: float) -> Inference:
    """A finished request; all of its time went into computing where nothing more is known."""
    total = time.perf_counter() - info.arrival
    if stats is None:
        return Inference(model.name, first, total, queue=0.0, input=0.0, infer=total, output=0.0)
    return Inference(
        model.name,
        first,
        total,
        queue=stats.queue,
        input=stats.validation,
        infer=stats.inference,
        output=max(0.0, total - stats.total),
    )


def _reason(error: BaseException) -> InferenceFailure:
    """Triton's words."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit | ClientGone):
        return "CANCELED"
    if not isinstance(error, RequestError):
        return "BACKEND"
    if error.kind in (Kind.OVERLOADED, Kind.UNAVAILABLE):
        return "REJECTED"
    return "BACKEND" if error.kind in (Kind.GENERATION, Kind.INTERNAL) else "OTHER"


def _in_its_time(error: BaseException, request: InferRequest, limit: float) -> BaseException:
    """`error`; where the time that ran out is the request's own, not the server's `limit`, with that."""
    own = request.timeout if isinstance(error, RequestError) and error.kind is Kind.DEADLINE else 0
    if not own or 0 < limit <= own:
        return error
    return RequestError(Kind.DEADLINE, f"the request was not finished within its timeout of {own:g} s")

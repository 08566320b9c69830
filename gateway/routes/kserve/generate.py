"""`/v2/models/{model}/generate` and `/generate_stream`: tensors as plain fields of a JSON object.

A field that is named as an input is that tensor, a value or a flat list of values; any other is a parameter of the
request. `parameters` is an object of more of both. Source: Triton, docs/protocol/extension_generate.md.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import Request, Response

from gateway.errors import Kind, RequestError
from gateway.http.body import LARGE, parse_object, refuse_compressed
from gateway.http.disconnect import while_connected
from gateway.http.encoding import in_thread, json_bytes
from gateway.http.sse import EventStream
from gateway.request.gateway_state import Gateway
from gateway.request.info import RequestInfo
from gateway.routes.kserve import models
from gateway.routes.kserve.binary import read_parts
from gateway.routes.kserve.errors import error_event
from gateway.routes.kserve.infer import MANY, MAX_JSON_VALUES
from gateway.routes.kserve.inference import InferRequest, InferResponse, Model, TensorSpec
from gateway.routes.kserve.tensor import BYTES, Tensor

NESTED = "parameters"


async def respond(request: Request, gateway: Gateway, name: str, version: str, arrival: float) -> Response:
    """The one answer. Raises RequestError."""
    model, asked = await _read(request, gateway, name, version, streams=False)
    info = RequestInfo.of(request, arrival)
    response = await while_connected(request.receive, models.infer_once(gateway, info, model, asked))
    return Response(await _encode(response), media_type="application/json")


async def stream(request: Request, gateway: Gateway, name: str, version: str, arrival: float) -> Response:
    """An event for each response, and no other at the end. Raises RequestError before the first."""
    model, asked = await _read(request, gateway, name, version, streams=True)
    events = _events(gateway, RequestInfo.of(request, arrival), model, asked)
    return await EventStream.begin(request, events, error_event, {})


async def _events(
    gateway: Gateway, info: RequestInfo, model: Model, asked: InferRequest
) -> AsyncGenerator[bytes, None]:
    async with aclosing(models.infer(gateway, info, model, asked)) as responses:
        async for response in responses:
            yield b"data: " + await _encode(response) + b"\n\n"


async def _read(
    request: Request, gateway: Gateway, name: str, version: str, *, streams: bool
) -> tuple[Model, InferRequest]:
    model = await models.find_model(gateway, name, version)
    refuse_compressed(request)
    raw, _ = await read_parts(request, gateway.payload_limit)
    body = await parse_object(raw or b"")
    return model, await in_thread(lambda: _asked(name, model, body, streams), when=len(raw or b"") > LARGE)


def _asked(name: str, model: Model, body: dict[str, Any], streams: bool) -> InferRequest:
    """The request that `body` makes. Raises RequestError."""
    id, nested = body.pop("id", None), body.pop(NESTED, None)
    if not isinstance(id, str | None) or not isinstance(nested, dict | None):
        raise RequestError(Kind.SHAPE, f"id must be a string and {NESTED} an object")
    fields = {**(nested or {}), **body}
    inputs = {each: _tensor(model, each, value) for each, value in fields.items() if _is_input(model, each, value)}
    parameters = {each: value for each, value in fields.items() if each not in inputs}
    for each, value in parameters.items():
        if not isinstance(value, bool | int | float | str):
            message = f"'{each[:64]}' is no input of the model: as a parameter it must be one value"
            raise RequestError(Kind.SHAPE, message, param=each)
    return InferRequest(name, id or "", parameters, inputs, streams=streams)


def _is_input(model: Model, name: str, value: Any) -> bool:
    """Whether a field is a tensor. A number that is written as a text can only be a parameter, of vLLM."""
    if spec := model.signature.input(name):
        return not isinstance(value, str) or spec.datatype == BYTES
    return name in model.signature.refused


def _tensor(model: Model, name: str, value: Any) -> Tensor:
    values = value if isinstance(value, list) else [value]
    spec = model.signature.input(name) or TensorSpec(name, _datatype(values))
    return Tensor.from_json(name, spec.datatype, (len(values),), values)


def _datatype(values: list[Any]) -> str:
    """Of an input that the model only knows to refuse it."""
    kinds = {type(each) for each in values}
    return "BOOL" if kinds == {bool} else BYTES if str in kinds else "FP64"


async def _encode(response: InferResponse) -> bytes:
    """Raises RequestError if JSON cannot hold the response."""
    if response.values > MAX_JSON_VALUES:
        message = f"the answer has {response.values} values, at most {MAX_JSON_VALUES} fit in JSON: use infer"
        raise RequestError.invalid(message)
    return await in_thread(lambda: _encoded(response), when=response.values > MANY)


def _encoded(response: InferResponse) -> bytes:
    """One JSON object: outputs by name, a value where there is only one."""
    outputs = "".join([f',"{each.name}":{_plain(each)}' for each in response.outputs])
    return json_bytes(response.head)[:-1] + outputs.encode() + b"}"


def _plain(tensor: Tensor) -> str:
    return next(tensor.json()) if len(tensor.values) == 1 else tensor.json_data()

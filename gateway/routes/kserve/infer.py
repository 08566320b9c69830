"""`/v2/models/{model}/infer`: tensors in JSON or behind it, and the answer in the form that each output asks for."""

from collections.abc import Iterator

from fastapi import Request, Response

from gateway.errors import Kind, RequestError
from gateway.http.body import LARGE, parse_body
from gateway.http.disconnect import while_connected
from gateway.http.encoding import in_thread, json_bytes, json_list
from gateway.http.piecewise import PiecewiseResponse
from gateway.request.gateway_state import Gateway
from gateway.request.info import RequestInfo
from gateway.routes.kserve import models
from gateway.routes.kserve.binary import LENGTH, read_parts
from gateway.routes.kserve.inference import InferRequest, InferResponse, Model, Output, by_name
from gateway.routes.kserve.schemas import InferBody, InputBody
from gateway.routes.kserve.tensor import BYTES, Tensor

MAX_JSON_VALUES = 1 << 20  # numbers of an answer in JSON, which take 1 us each to write
MANY = 10_000  # likewise, from which on a thread writes them


async def respond(request: Request, gateway: Gateway, name: str, version: str, arrival: float) -> Response:
    """The whole answer, unless the client leaves before it is made. Raises RequestError."""
    model = await models.find_model(gateway, name, version)
    header, rest = await read_parts(request, gateway.payload_limit)
    if header is None:
        body, asked = None, InferRequest(name, inputs=_one_raw(model, rest))
    else:
        body = await parse_body(header, InferBody)
        asked = await in_thread(lambda: _asked(name, body, rest), when=len(header) + len(rest) > LARGE)
    info = RequestInfo.of(request, arrival)
    response = await while_connected(request.receive, models.infer_once(gateway, info, model, asked))
    return await in_thread(lambda: _encoded(body, response), when=response.values > MANY)


def _one_raw(model: Model, raw: bytes) -> dict[str, Tensor]:
    """A body that is the one input which `model` needs, without JSON: one text, or as many numbers as it holds."""
    if len(model.signature.required) != 1:
        raise RequestError.invalid("a body without JSON is for models that need one input")
    spec = model.signature.input(model.signature.required[0])
    assert spec is not None
    if spec.datatype == BYTES:
        framed = len(raw).to_bytes(4, "little") + raw
        return {spec.name: Tensor.from_raw(spec.name, BYTES, (1,), framed)}
    size = Tensor.of(spec.name, spec.datatype, [0]).values.itemsize
    return {spec.name: Tensor.from_raw(spec.name, spec.datatype, (len(raw) // size,), raw)}


def _asked(name: str, body: InferBody, rest: bytes) -> InferRequest:
    """The request of a body and the raw tensors behind it. Raises RequestError."""
    inputs = by_name(_tensors(body, rest))
    body.binary_outputs([])  # now, before anything is computed, it may refuse
    outputs = tuple(Output(each.name, each.classes) for each in body.outputs or ())
    return InferRequest(name, body.id or "", body.parameters or {}, inputs, outputs)


def _tensors(body: InferBody, rest: bytes) -> Iterator[Tensor]:
    """The inputs of a body; those that are raw lie behind it in their order. Raises RequestError."""
    at = 0
    for each in body.inputs:
        size = each.binary_size or 0
        if at + size > len(rest):
            message = f"input '{each.name}': binary_data_size {size} ends behind the body"
            raise RequestError(Kind.MALFORMED, message, param=each.name)
        yield _tensor(each, rest[at : at + size])
        at += size
    if at != len(rest):
        raise RequestError(Kind.MALFORMED, f"{len(rest)} bytes follow the JSON, the inputs name {at}")


def _tensor(body: InputBody, raw: bytes) -> Tensor:
    shape = tuple(body.shape)
    if body.binary_size is not None:
        return Tensor.from_raw(body.name, body.datatype, shape, raw)
    if body.data is None:
        raise RequestError.invalid(f"input '{body.name}' has no data", body.name)
    return Tensor.from_json(body.name, body.datatype, shape, body.data)


def _encoded(body: InferBody | None, response: InferResponse) -> Response:
    """The answer: outputs that ask for it are raw behind the JSON. Without a body in JSON all are."""
    names = [each.name for each in response.outputs]
    binary = names if body is None else body.binary_outputs(names)
    in_json = [each for each in response.outputs if each.name not in binary]
    if (count := sum(len(each.values) for each in in_json)) > MAX_JSON_VALUES:
        message = f"the answer has {count} values, at most {MAX_JSON_VALUES} fit in JSON: ask for binary_data"
        raise RequestError.invalid(message)
    raws = [each.raw() for each in response.outputs if each.name in binary]
    sizes = {name: len(raw) for name, raw in zip(binary, raws, strict=True)}
    outputs = json_list(_output(each, sizes.get(each.name)) for each in response.outputs)
    header = json_bytes(response.head)[:-1] + b',"outputs":' + outputs.encode() + b"}"
    if not raws:
        return Response(header, media_type="application/json")
    content = b"".join((header, *raws))
    return PiecewiseResponse(content, media_type="application/octet-stream", headers={LENGTH: str(len(header))})


def _output(tensor: Tensor, size: int | None) -> str:
    """One of `outputs`, as JSON; `size` bytes of it follow if it is not None."""
    head = json_bytes({"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)})[:-1].decode()
    values = f'"data":{tensor.json_data()}' if size is None else f'"parameters":{{"binary_data_size":{size}}}'
    return f"{head},{values}}}"

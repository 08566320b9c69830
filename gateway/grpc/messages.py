"""Inferences as messages of gRPC: requests read from them, responses written as them.

A request's tensors are raw, or in the typed lists of `contents`; those of a response are raw: Triton's clients read no
others.
"""

from collections.abc import Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from gateway.errors import Kind, RequestError
from gateway.grpc import open_inference_pb2 as pb
from gateway.http.body import LARGE
from gateway.http.encoding import in_thread
from gateway.routes.kserve.inference import VERSION, InferRequest, InferResponse, Output, Parameter, by_name
from gateway.routes.kserve.schemas import MAX_PARAMETERS, MAX_TENSORS, class_count, refuse_shared_memory
from gateway.routes.kserve.tensor import BYTES, MAX_NAME, RAW_ONLY, Tensor

AnyMessage = TypeVar("AnyMessage", bound=Message)

FINAL = "triton_final_response"
# The list of `contents` that has the values of each type.
CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}


def parse(kind: type[AnyMessage], raw: bytes) -> AnyMessage:
    """Raises RequestError if `raw` is no such message."""
    message = kind()
    try:
        message.ParseFromString(raw)
    except DecodeError:
        raise RequestError(Kind.MALFORMED, "the message is not one of this call") from None
    return message


async def infer_request(asked: pb.ModelInferRequest, *, streams: bool) -> InferRequest:
    """Raises RequestError."""
    large = sum(map(len, asked.raw_input_contents)) > LARGE or any(map(_has_many, asked.inputs))
    return await in_thread(lambda: _infer_request(asked, streams), when=large)


def _has_many(tensor: pb.InferTensor) -> bool:
    return tensor.HasField("contents") and tensor.contents.ByteSize() > LARGE


def _infer_request(asked: pb.ModelInferRequest, streams: bool) -> InferRequest:
    raws = asked.raw_input_contents
    if max(len(asked.inputs), len(asked.outputs)) > MAX_TENSORS:
        raise RequestError.invalid(f"a request has at most {MAX_TENSORS} inputs and {MAX_TENSORS} outputs")
    names = (*(each.name for each in asked.inputs), *(each.name for each in asked.outputs))
    if any(len(name) > MAX_NAME for name in names):
        raise RequestError.invalid(f"the name of an input or output has at most {MAX_NAME} characters")
    if raws and len(raws) != len(asked.inputs):
        raise RequestError.invalid(f"there are {len(raws)} raw_input_contents for {len(asked.inputs)} inputs")
    for each in asked.inputs:
        refuse_shared_memory(each.name, _parameters(each.parameters))
    inputs = by_name(map(_raw_tensor, asked.inputs, raws) if raws else map(_tensor, asked.inputs))
    outputs = tuple(map(_output, asked.outputs))
    return InferRequest(asked.model_name, asked.id, _parameters(asked.parameters), inputs, outputs, streams)


def _raw_tensor(given: pb.InferTensor, raw: bytes) -> Tensor:
    if given.HasField("contents"):
        raise RequestError.invalid(f"input '{given.name}' has both contents and raw_input_contents", given.name)
    return Tensor.from_raw(given.name, given.datatype, tuple(given.shape), raw)


def _tensor(given: pb.InferTensor) -> Tensor:
    if given.datatype in RAW_ONLY:
        message = f"input '{given.name}' is {given.datatype}, which only raw_input_contents can hold"
        raise RequestError.invalid(message, given.name)
    field = CONTENTS.get(given.datatype)  # another type is refused with all that are known
    values = list(getattr(given.contents, field)) if field else []
    return Tensor.from_json(given.name, given.datatype, tuple(given.shape), values)


def _output(given: pb.ModelInferRequest.RequestedOutput) -> Output:
    parameters = _parameters(given.parameters)
    refuse_shared_memory(given.name, parameters)
    return Output(given.name, class_count(given.name, parameters.get("classification")))


def _parameters(given: Mapping[str, pb.InferParameter]) -> dict[str, Parameter]:
    if len(given) > MAX_PARAMETERS:
        raise RequestError.invalid(f"there are {len(given)} parameters, at most {MAX_PARAMETERS} can be given")
    return {name: _value(name, value) for name, value in given.items()}


def _value(name: str, given: pb.InferParameter) -> Parameter:
    choice = given.WhichOneof("choice")
    if choice is None:
        raise RequestError.invalid(f"parameter '{name[:64]}' has no value", name)
    value: Parameter = getattr(given, choice)
    return value


async def response_bytes(response: InferResponse) -> bytes:
    """A `ModelInferResponse`."""
    return await in_thread(lambda: _response(response).SerializeToString(), when=_is_large(response))


async def streamed_bytes(response: InferResponse) -> bytes:
    """A `ModelStreamInferResponse` that says whether it is the request's last."""

    def encoded() -> bytes:
        whole = _response(response)
        whole.parameters[FINAL].bool_param = response.final
        return pb.ModelStreamInferResponse(infer_response=whole).SerializeToString()

    return await in_thread(encoded, when=_is_large(response))


def failure_bytes(asked: pb.ModelInferRequest, message: str) -> bytes:
    """Likewise, the end of a request that fails. Its id says which."""
    whole = pb.ModelInferResponse(model_name=asked.model_name, model_version=VERSION, id=asked.id)
    whole.parameters[FINAL].bool_param = True
    return pb.ModelStreamInferResponse(error_message=message, infer_response=whole).SerializeToString()


def _is_large(response: InferResponse) -> bool:
    return sum(each.values.nbytes for each in response.outputs) > LARGE


def _response(response: InferResponse) -> pb.ModelInferResponse:
    return pb.ModelInferResponse(
        model_name=response.model,
        model_version=VERSION,
        id=response.id,
        outputs=[pb.InferTensor(name=each.name, datatype=each.datatype, shape=each.shape) for each in response.outputs],
        raw_output_contents=[each.raw() for each in response.outputs],
    )

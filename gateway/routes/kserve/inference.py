"""An inference, whichever way it travels: what a model takes and answers, one request, one response."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.errors import RequestError
from gateway.observability.request_stats import RequestStats
from gateway.request.gateway_state import Gateway
from gateway.request.info import RequestInfo
from gateway.routes.kserve.tensor import BYTES, FLOATS, WHOLE, Tensor

VERSION = "1"  # of every model
MAX_CLASSES = 1000  # of a classification
Parameter = bool | int | float | str
Parameters = Mapping[str, Parameter]

# What one sequence of requests to a stateful model would say: none of ours has a state.
SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a model takes or answers; `dims` has -1 for a size that varies."""

    name: str
    datatype: str
    dims: tuple[int, ...] = (-1,)
    optional: bool = False
    labels: bool = False  # an output whose values are those of labels: the tokens of the vocabulary


@dataclass(frozen=True)
class Signature:
    """What a model takes and answers; `decoupled` if one request may have several responses. `refused` are inputs
    that it takes only if they ask for nothing, with what to do instead.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    decoupled: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)

    def input(self, name: str) -> TensorSpec | None:
        return next((each for each in self.inputs if each.name == name), None)

    @property
    def required(self) -> list[str]:
        return [each.name for each in self.inputs if not each.optional]


@dataclass(frozen=True)
class Output:
    """An output that a request names; `classes` highest values are wanted instead of all if it is not 0."""

    name: str
    classes: int = 0


@dataclass(frozen=True)
class InferRequest:
    """inputs: by name. outputs: all if empty. streams: whether several responses can be answered."""

    model: str
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    outputs: tuple[Output, ...] = ()
    streams: bool = False

    @property
    def timeout(self) -> float:
        """Seconds that the client gives the request; 0 without a limit. On the wire they are microseconds."""
        return _whole(self.parameters, "timeout") / 1e6

    @property
    def priority(self) -> int:
        """As the engine counts: lower runs earlier. On the wire 1 is the highest and 0 the default, the lowest."""
        level = _whole(self.parameters, "priority")
        return min(level - (1 << 31), 0) if level > 0 else 0

    def wants(self, output: str) -> bool:
        return not self.outputs or any(each.name == output for each in self.outputs)

    def classes(self, output: str) -> int:
        return max((each.classes for each in self.outputs if each.name == output), default=0)


@dataclass(frozen=True)
class InferResponse:
    """`final`: whether it is the request's last, which has the request's `stats` if it went through the engine."""

    model: str
    id: str
    outputs: tuple[Tensor, ...]
    final: bool = True
    stats: RequestStats | None = None

    @property
    def head(self) -> dict[str, str]:
        """The fields beside the outputs, as JSON has them."""
        return {**({"id": self.id} if self.id else {}), "model_name": self.model, "model_version": VERSION}

    @property
    def values(self) -> int:
        """Of all outputs."""
        return sum(len(each.values) for each in self.outputs)


class Model(Protocol):
    """One of the models that the protocol shows."""

    name: str
    signature: Signature

    def infer(self, gateway: Gateway, info: RequestInfo, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """One response, or several where the request `streams`. `check` has passed. Raises RequestError."""
        ...


def check(signature: Signature, request: InferRequest) -> None:
    """Check a request's tensors and reserved parameters. Raises RequestError naming the first that is wrong."""
    for name in SEQUENCE:
        if request.parameters.get(name):
            raise RequestError.invalid(f"parameter '{name}' is not supported: no model here has a state", name)
    for tensor in request.inputs.values():
        _check_input(signature, tensor)
    if missing := [name for name in signature.required if name not in request.inputs]:
        raise RequestError.invalid(f"input '{missing[0]}' is missing: the model needs it", missing[0])
    for output in request.outputs:
        _check_output(signature, output)


def _check_input(signature: Signature, tensor: Tensor) -> None:
    """Numbers may come in another width than the model's: configurations of the same back end differ in it."""
    if instead := signature.refused.get(tensor.name):
        if tensor.values.any():
            raise RequestError.invalid(f"input '{tensor.name}' is not supported: {instead}", tensor.name)
        return
    spec = signature.input(tensor.name)
    if spec is None:
        known = ", ".join(each.name for each in signature.inputs)
        raise RequestError.invalid(f"unexpected inference input '{shown(tensor.name)}': the model takes {known}")
    family = next((each for each in (WHOLE, FLOATS) if spec.datatype in each), (spec.datatype,))
    if tensor.datatype not in family:
        message = f"input '{spec.name}' has datatype {tensor.datatype}, but the model takes {spec.datatype}"
        raise RequestError.invalid(message, spec.name)


def _check_output(signature: Signature, output: Output) -> None:
    spec = next((each for each in signature.outputs if each.name == output.name), None)
    if spec is None:
        known = ", ".join(each.name for each in signature.outputs)
        raise RequestError.invalid(f"unexpected inference output '{shown(output.name)}': the model answers {known}")
    if output.classes and not spec.labels:
        raise RequestError.invalid(f"output '{spec.name}' has no classification: its values have no labels", spec.name)
    if output.classes > MAX_CLASSES:
        message = f"output '{spec.name}': classification {output.classes} is more than {MAX_CLASSES}"
        raise RequestError.invalid(message, spec.name)


def by_name(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    """The inputs of a request. Raises RequestError if one is given twice."""
    inputs: dict[str, Tensor] = {}
    for tensor in tensors:
        if tensor.name in inputs:
            raise RequestError.invalid(f"input '{tensor.name}' is given twice", tensor.name)
        inputs[tensor.name] = tensor
    return inputs


def one_value(tensor: Tensor) -> Parameter:
    """The value of a tensor that has one, of whichever shape. Raises RequestError."""
    if len(tensor.values) != 1:
        message = f"input '{tensor.name}' takes one value, given {len(tensor.values)} (shape {list(tensor.shape)})"
        raise RequestError.invalid(message, tensor.name)
    [value] = tensor.values.tolist()
    if tensor.datatype == BYTES:
        return text_of(tensor.name, value)
    chosen: Parameter = value
    return chosen


def texts_of(tensor: Tensor) -> list[str]:
    return [text_of(tensor.name, each) for each in tensor.values]


def text_of(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RequestError.invalid(f"input '{name}' is not UTF-8", name) from None


def _whole(parameters: Parameters, name: str) -> int:
    value = parameters.get(name, 0)
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise RequestError.invalid(f"parameter '{name}' must be a whole number of 0 to 2^64 - 1", name)
    return value


def shown(name: str) -> str:
    """A client's name for something, as far as a message repeats it."""
    return name if len(name) <= 64 and name.isprintable() else "of another name"

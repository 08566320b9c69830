"""The JSON of an inference over HTTP: Triton's and KServe's `$inference_request`."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from gateway.errors import RequestError
from gateway.http.body import StrictModel
from gateway.routes.kserve.tensor import MAX_DIMENSIONS, MAX_NAME

MAX_TENSORS = 64
MAX_PARAMETERS = 128
SHARED_MEMORY = "shared_memory_region"

Size = Annotated[int, Field(ge=0, le=2**63 - 1)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Values = Annotated[dict[str, bool | int | float | str], Field(max_length=MAX_PARAMETERS)]


class InputBody(StrictModel):
    """A tensor; its values are in `data`, or behind the JSON as so many bytes as `binary_data_size` says."""

    name: Name
    shape: Annotated[list[Size], Field(max_length=MAX_DIMENSIONS)]
    datatype: str
    parameters: Values | None = None
    data: list[Any] | None = None

    @property
    def binary_size(self) -> int | None:
        """Bytes of its raw form; None for one in JSON. Raises RequestError."""
        given = self.parameters or {}
        refuse_shared_memory(self.name, given)
        size = given.get("binary_data_size")
        if size is None:
            return None
        if type(size) is not int or size < 0:
            raise RequestError.invalid(f"input '{self.name}': binary_data_size must be a whole number", self.name)
        if self.data is not None:
            raise RequestError.invalid(f"input '{self.name}' has both data and binary_data_size", self.name)
        return size


class OutputBody(StrictModel):
    """An output that is wanted."""

    name: Name
    parameters: Values | None = None

    @property
    def classes(self) -> int:
        """How many of the highest values are wanted; 0 for the values themselves. Raises RequestError."""
        given = self.parameters or {}
        refuse_shared_memory(self.name, given)
        return class_count(self.name, given.get("classification"))

    def is_binary(self, otherwise: bool) -> bool:
        """Raises RequestError."""
        return switch("binary_data", (self.parameters or {}).get("binary_data", otherwise))


class InferBody(StrictModel):
    id: str | None = None
    parameters: Values | None = None
    inputs: Annotated[list[InputBody], Field(min_length=1, max_length=MAX_TENSORS)]
    outputs: Annotated[list[OutputBody], Field(max_length=MAX_TENSORS)] | None = None

    def binary_outputs(self, names: list[str]) -> list[str]:
        """Those of an answer's outputs that are to be raw. Raises RequestError."""
        otherwise = switch("binary_data_output", (self.parameters or {}).get("binary_data_output", False))
        said = {each.name: each.is_binary(otherwise) for each in self.outputs or ()}
        return [name for name in names if said.get(name, otherwise)]


class GenerateBody(StrictModel):
    """For the OpenAPI document: fields named as inputs of the model are tensors, others are parameters."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    parameters: dict[str, Any] | None = None
    text_input: str | list[str] | None = None
    stream: bool | None = None


class IndexBody(StrictModel):
    """Body of the repository's index; it may be empty."""

    ready: bool | None = None


def switch(name: str, given: Any) -> bool:
    """The value of a parameter that is on or off. Raises RequestError."""
    if not isinstance(given, bool):
        raise RequestError.invalid(f"parameter '{name}' must be true or false", name)
    return given


def class_count(name: str, given: Any) -> int:
    """The value of an output's parameter `classification`. Raises RequestError."""
    if given is None:
        return 0
    if type(given) is not int or given < 0:
        raise RequestError.invalid(f"output '{name}': classification must be a whole number of at least 0", name)
    return given


def refuse_shared_memory(name: str, parameters: Mapping[str, Any]) -> None:
    """Raises RequestError if the values of tensor `name` are said to be there."""
    if SHARED_MEMORY in parameters:
        raise RequestError.invalid(f"tensor '{name}': shared memory is not supported, send the values", name)

"""The weights in an ONNX file, without the onnx package: a graph's tensors and which node reads which.

It reads only what the file of `flan_t5.py` needs of the format (onnx.proto): tensors of a few types, and the names and
inputs of nodes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64}
GRAPH, NODE, INITIALIZER = 7, 1, 5  # field numbers of ModelProto and GraphProto
NODE_INPUT, NODE_NAME = 1, 3
DIMS, TYPE, FLOATS, INTEGERS, TENSOR_NAME, RAW = 1, 2, 4, 5, 8, 9


@dataclass
class Graph:
    """Arrays by name, and for each node its name and the names of its inputs."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[tuple[str, list[str]]] = field(default_factory=list)


def read_graph(model: bytes) -> Graph:
    graph = Graph()
    [body] = [value for number, value in _fields(memoryview(model)) if number == GRAPH]
    for number, value in _fields(body):
        if number == INITIALIZER:
            name, array = _tensor(value)
            graph.arrays[name] = array
        elif number == NODE:
            parts = list(_fields(value))
            names = [bytes(part).decode() for key, part in parts if key == NODE_INPUT]
            graph.nodes.append((next(bytes(part).decode() for key, part in parts if key == NODE_NAME), names))
    return graph


def _tensor(body: memoryview) -> tuple[str, np.ndarray]:
    parts = list(_fields(body))
    dims = [value for number, value in parts if number == DIMS]
    one = dict(parts)  # the fields that are not repeated, or are packed
    dtype = TYPES[one[TYPE]]
    if INTEGERS in one:
        values = np.array(list(_varints(one[INTEGERS])), np.uint64).astype(dtype)
    else:
        values = np.frombuffer(one.get(RAW) or one[FLOATS], dtype)
    return bytes(one[TENSOR_NAME]).decode(), values.reshape(dims)


def _fields(body: memoryview) -> Iterator[tuple[int, Any]]:
    """Field numbers and values of a protobuf message: integers, or the bytes of everything else."""
    at = 0
    while at < len(body):
        key, at = _varint(body, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(body, at)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            size, at = _varint(body, at)
        yield number, body[at : at + size]
        at += size


def _varints(body: memoryview) -> Iterator[int]:
    at = 0
    while at < len(body):
        value, at = _varint(body, at)
        yield value


def _varint(body: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at

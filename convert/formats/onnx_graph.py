"""ONNX graphs: the constants in a file, and the nodes that use them. Nothing is computed.

Of the format (https://github.com/onnx/onnx/blob/v1.23.0/onnx/onnx.proto) this reads what tells a model's weights.
Constants are pieces of the mapped file, or say which other file they are in. The `onnx` package, 31 MB more to install,
copies every weight that is in the file: to open 652 MB of weights took 641 MB of memory with it, and takes 6 MB so.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from convert.formats.protobuf import FieldReader, Value, content, number, text
from convert.formats.tensors import MAX_DIMS, MAX_TENSORS

MAX_FIELDS = 2_000_000  # 30 layers of a Llama have 66 or 124 thousand (torch 2.13), read in 0.1 or 0.2 s
MAX_TEXT = 4096  # characters of a name
MAX_DEPTH = 4  # of graphs within graphs

DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.uint8),
    3: np.dtype(np.int8),
    4: np.dtype(np.uint16),
    5: np.dtype(np.int16),
    6: np.dtype(np.int32),
    7: np.dtype(np.int64),
    9: np.dtype(np.bool_),
    10: np.dtype(np.float16),
    11: np.dtype(np.float64),
    12: np.dtype(np.uint32),
    13: np.dtype(np.uint64),
    16: np.dtype(ml_dtypes.bfloat16),
}

# Field numbers, by message
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER = 1, 5
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP, NODE_ATTRIBUTE, NODE_METADATA = 1, 2, 3, 4, 5, 9
ATTRIBUTE_NAME, ATTRIBUTE_FLOAT, ATTRIBUTE_INT, ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_INTS = 1, 2, 3, 5, 6, 8
DIMS, DATA_TYPE, FLOATS, INT32S, INT64S, TENSOR_NAME, RAW, DOUBLES, EXTERNAL = 1, 2, 4, 5, 7, 8, 9, 10, 13
KEY, VALUE = 1, 2

ONE = np.float32(1).tobytes()
SCOPES = b"pkg.torch.onnx.name_scopes"  # what torch's newer exporter says of a node: the modules around it


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor of the file. Its elements are `data`, little-endian, unless `external` says where they are.

    dtype: None where NumPy has no such type.
    """

    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    data: memoryview | bytes = b""
    external: dict[str, str] = field(default_factory=dict)

    @property
    def matrix(self) -> bool:
        """Whether it may be the weight of a product."""
        return self.floating and len(self.shape) == 2

    @property
    def weighs(self) -> bool:
        """Whether it may be a weight or a bias."""
        return self.floating and math.prod(self.shape) > 1

    def same(self, other: "Constant") -> bool:
        """Whether both have the same elements, as far as the file tells."""
        mine, theirs = ((each.dtype, each.shape, each.external) for each in (self, other))
        return mine == theirs and self.data == other.data

    @property
    def floating(self) -> bool:
        return self.dtype is not None and self.dtype.name in ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True, eq=False)
class Node:
    """An operation on named values.

    scope: the module that it belongs to, `transformer.h.0.mlp`, where torch's newer exporter said so.
    swaps: whether an attribute says that a matrix is transposed: `perm` of Transpose, `transB` of Gemm.
    scaled: whether one says that product or bias of a Gemm are multiplied by anything but 1, `alpha` or `beta`. Means
        nothing for other operations.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scope: str = ""
    swaps: bool = False
    scaled: bool = False


@dataclass
class Graph:
    """Constants by name, and the nodes in the order of the file, those of branches (`If`) among them."""

    constants: dict[str, Constant] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)


def read_graph(model: memoryview) -> Graph:
    """The graph in the bytes of an ONNX file.

    Raises:
        ValueError: they are none.
    """
    reader = _GraphReader()
    bodies = [value for key, value in reader.fields(model) if key == MODEL_GRAPH]
    if len(bodies) != 1:
        raise ValueError(f"it has {len(bodies)} graphs")
    reader.read(content(bodies[0]))
    return reader.graph


class _GraphReader(FieldReader):
    def __init__(self) -> None:
        super().__init__(MAX_FIELDS)
        self.graph = Graph()

    def read(self, body: memoryview, depth: int = 0) -> None:
        if depth > MAX_DEPTH:
            raise ValueError(f"its graphs lie more than {MAX_DEPTH} deep in each other")
        for key, value in self.fields(body):
            if key == GRAPH_INITIALIZER:
                self._add(*self._tensor(content(value)), depth)
            elif key == GRAPH_NODE:
                self._read_node(content(value), depth)

    def _add(self, name: str, constant: Constant, depth: int) -> None:
        """Branches may use a name both, but not for different weights."""
        if known := self.graph.constants.get(name):
            if not depth or ((known.weighs or constant.weighs) and not known.same(constant)):
                raise ValueError(f"tensor {name[:80]!r} is there twice")
            return
        if len(self.graph.constants) >= MAX_TENSORS:
            raise ValueError(f"there are more than {MAX_TENSORS} tensors")
        self.graph.constants[name] = constant

    def _read_node(self, body: memoryview, depth: int) -> None:
        """Add a node, what is in its branches, and the tensor if it is the constant of one."""
        parts: dict[int, str] = {}
        values: dict[int, list[str]] = {NODE_INPUT: [], NODE_OUTPUT: []}
        scope, swaps, scaled, tensors = "", False, False, []
        for key, value in self.fields(body):
            if key in values:
                values[key].append(_name(value))
            elif key in (NODE_NAME, NODE_OP):
                parts[key] = _name(value)
            elif key == NODE_METADATA and SCOPES in bytes(content(value)[:64]):  # the key comes first
                scope = self._scope(content(value))
            elif key == NODE_ATTRIBUTE:
                attribute = dict(self.fields(content(value)))
                name = _name(attribute.get(ATTRIBUTE_NAME, memoryview(b"")))
                swaps = swaps or self._swaps(name, content(value), attribute)
                factor = content(attribute.get(ATTRIBUTE_FLOAT, memoryview(b"")))
                scaled = scaled or (name in ("alpha", "beta") and bytes(factor) != ONE)
                if ATTRIBUTE_GRAPH in attribute:
                    self.read(content(attribute[ATTRIBUTE_GRAPH]), depth + 1)
                if ATTRIBUTE_TENSOR in attribute:
                    tensors.append(self._tensor(content(attribute[ATTRIBUTE_TENSOR]))[1])
        node = Node(
            parts.get(NODE_OP, ""),
            parts.get(NODE_NAME, ""),
            tuple(values[NODE_INPUT]),
            tuple(values[NODE_OUTPUT]),
            scope,
            swaps,
            scaled,
        )
        self.graph.nodes.append(node)
        if node.op == "Constant" and len(node.outputs) == len(tensors) == 1:
            self._add(node.outputs[0], tensors[0], depth)

    def _swaps(self, name: str, body: memoryview, attribute: dict[int, Value]) -> bool:
        if name == "perm":
            values = [each for key, value in self.fields(body) if key == ATTRIBUTE_INTS for each in self.numbers(value)]
            return values == [1, 0]
        return name == "transB" and attribute.get(ATTRIBUTE_INT) == 1

    def _scope(self, body: memoryview) -> str:
        """The value is a list as Python writes it, from the model down to the module and the operation in it."""
        entry = dict(self.fields(body))
        scopes = re.findall(r"'([^']*)'", _name(entry.get(VALUE, memoryview(b""))))
        return scopes[-2] if len(scopes) > 1 else ""

    def _tensor(self, body: memoryview) -> tuple[str, Constant]:
        name, dtype, dims, external = "", None, list[int](), dict[str, str]()
        data: memoryview | bytes = b""
        integers: list[int] = []
        for key, value in self.fields(body):
            if key == TENSOR_NAME:
                name = _name(value)
            elif key == DATA_TYPE:
                dtype = DTYPES.get(number(value))
            elif key == DIMS:
                dims.extend(map(number, self.numbers(value)))
            elif key in (RAW, FLOATS, DOUBLES):
                if len(data):
                    raise ValueError(f"tensor {name[:80]!r} is in pieces")
                data = content(value)
            elif key in (INT32S, INT64S):
                integers.extend(map(number, self.numbers(value)))
            elif key == EXTERNAL:
                entry = {part: _name(said) for part, said in self.fields(content(value))}
                external[entry.get(KEY, "")] = entry.get(VALUE, "")
        if len(dims) > MAX_DIMS or any(size < 0 for size in dims) or math.prod(size or 1 for size in dims) >= 2**60:
            raise ValueError(f"tensor {name[:80]!r} has shape {dims[:MAX_DIMS]}")
        if integers and dtype is not None:
            data = _packed(integers, dtype)
        return name, Constant(dtype, tuple(dims), data, external)


def _packed(integers: list[int], dtype: np.dtype[Any]) -> bytes:
    """Small types are written as one integer for each element, floats of 16 bits by their bits."""
    bits = np.array(integers, np.int64)
    return bits.astype(np.uint16 if dtype.kind not in "iub" else dtype).tobytes()


def _name(value: Value) -> str:
    """Raises ValueError for a name that is too long."""
    if len(content(value)) > MAX_TEXT:
        raise ValueError(f"a name has {len(content(value))} characters, at most {MAX_TEXT}")
    return text(value)

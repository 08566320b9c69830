"""ONNX files of a few nodes, written by the `onnx` package."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SCOPES = "pkg.torch.onnx.name_scopes"


def matrix(*shape: int, first: float = 1.0, dtype: Any = np.float32) -> np.ndarray:
    """Numbers that are all different."""
    return (first + np.arange(np.prod(shape))).reshape(shape).astype(dtype)


def node(op: str, inputs: Iterable[str], output: str, name: str = "", scope: str = "", **attributes: Any) -> Any:
    """A node in the module `scope`, as torch's newer exporter says it."""
    made = helper.make_node(op, list(inputs), [output], name, **attributes)
    if scope:
        parts = scope.split(".")
        scopes = ["", *(".".join(parts[: end + 1]) for end in range(len(parts))), op.lower()]
        made.metadata_props.add(key=SCOPES, value=str(scopes))
    return made


def model(nodes: Iterable[Any], constants: Mapping[str, np.ndarray | TensorProto]) -> onnx.ModelProto:
    made = [
        value if isinstance(value, TensorProto) else numpy_helper.from_array(value, name)
        for name, value in constants.items()
    ]
    return helper.make_model(helper.make_graph(list(nodes), "main", [], [], made))


def write(path: Path, nodes: Iterable[Any], constants: Mapping[str, np.ndarray | TensorProto]) -> Path:
    path.write_bytes(model(nodes, constants).SerializeToString())
    return path


def outside(name: str, shape: Iterable[int], **entries: object) -> TensorProto:
    """A tensor of f32 whose elements are external data."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=list(shape))
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor

"""The encoder of pictures: patches → rows that stand in for the embeddings of placeholder tokens."""

from typing import Any

from flax import nnx
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.device import DeviceTraits
from jaxengine.model.vision.packing import EncodeShape
from jaxengine.ops import Ops


class VisionEncoder(nnx.Module):
    """Arguments as for `Decoder`; those of `parameters` are used whose names begin with "vision."."""

    def __init__(self, spec: ModelSpec, parameters: dict[str, Any], device: DeviceTraits, ops: Ops) -> None:
        raise NotImplementedError

    def __call__(self, shape: EncodeShape, patches: Array, fields: Array) -> Array:
        """patches [P, patch_values] and `pack_pictures`' fields → rows [R, (1 + deepstack) · hidden].

        Rows are of the weights' dtype. `shape` is static. Behind the text model's rows lie those of each deepstack set.
        """
        raise NotImplementedError

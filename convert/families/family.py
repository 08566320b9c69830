"""A family of checkpoints: how its configuration becomes a `ModelSpec` and its tensor names parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from convert.config import Config
from convert.formats.tensors import Tensors
from jaxengine.model.spec import Activation, ModelSpec

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


@dataclass(frozen=True)
class Family:
    """`tensors[parameter]` are the checkpoint tensors of a parameter of `parameter_table`, `{i}` the layer's number.

    Tensors whose names match `ignore` carry no weights: buffers that older libraries saved along.
    """

    spec: Callable[[Config, Tensors], ModelSpec]
    tensors: Mapping[str, tuple[str, ...]]
    ignore: tuple[str, ...] = ()


def activation(config: Config, key: str) -> Activation:
    name = config.text(key, "silu")
    if name not in ACTIVATIONS:
        raise config.error(key, f"must be one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def refuse_quantized(config: Config) -> None:
    quantization = config.section("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method")
        raise config.error("quantization_config", f"({method}) is not supported yet; use the unquantised checkpoint")


def refuse_window(config: Config, default: int | None = None) -> None:
    """A sliding window is refused where it would change an answer: attention here sees the whole text."""
    window = config.values.get("sliding_window", default)
    positions = config.integer("max_position_embeddings")
    if window is not None and (type(window) is not int or window < positions):
        raise config.error("sliding_window", f"is not supported yet below max_position_embeddings {positions}")

"""Which stacks of experts their kernels can address."""

import math
from collections.abc import Mapping

import jax.numpy as jnp

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import parameter_table
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.device import DeviceTraits
from jaxengine.model.cache import ADDRESSES
from jaxengine.model.linear import weight_layout
from jaxengine.weights.quantization import shared_sizes


def check_addressable(spec: ModelSpec, formats: Mapping[str, WeightFormat], device: DeviceTraits, devices: int) -> None:
    """Raises ValueError where a stack of experts has as many elements of one byte as Pallas numbers wrongly, see
    `layers_of_array`: some would be read from elsewhere.
    """
    if not device.kernels:
        return
    table = parameter_table(spec)
    for name, format in formats.items():
        parameter = table[name]
        share = shared_sizes(parameter, devices)
        size = math.prod(parameter.shape[: parameter.stacked]) * math.prod(share)
        in_bytes = jnp.dtype(format.values).itemsize == 1 and not weight_layout(parameter, device, format, share).plane
        if parameter.stacked and in_bytes and ADDRESSES < size <= 2 * ADDRESSES:
            raise ValueError(
                f"{name} takes {size / 2**30:.2f} GiB of each device in {format.name}, and kernels cannot address "
                "between 2 and 4: split the model over more devices, or give quantize another value, as int4 or none"
            )

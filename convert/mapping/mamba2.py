"""Recipes of Mamba 2's parameters: one tensor makes gates, inputs, B, C and time steps, one behind the other, and one
convolves inputs, B and C.
"""

import math

import numpy as np

from convert.mapping.part import Part
from jaxengine.architecture.parameters import Parameter
from jaxengine.architecture.recurrence import Mamba2


def mamba2_part(name: str, mamba: Mamba2, parameter: Parameter, tensor: str) -> Part:
    """The part of parameter `name`, "mamba_…", in `tensor`."""
    shape, kind = parameter.shape, name.removesuffix("_bias")
    first, count = _rows(kind, mamba)
    if not count:
        outputs = len(shape) - parameter.inputs
        width = (math.prod(shape[outputs:]),) if parameter.inputs else ()
        return Part(tensor, (math.prod(shape[:outputs]), *width), (0,) * len(shape), shape, parameter.inputs)
    row = () if name != kind else shape[-1:]
    made = shape[: len(shape) - len(row)]
    channel = (1,) if row and kind.endswith("conv") else ()  # stored with an axis of one input channel
    rows = np.arange(first, first + math.prod(made)).reshape(made)
    return Part(tensor, (count, *channel, *row), (0,) * len(shape), shape, len(row), rows)


def _rows(kind: str, mamba: Mamba2) -> tuple[int, int]:
    """The first row of `kind` in its tensor, and how many that has; 0 where the tensor has nothing else."""
    inner, shared = mamba.heads * mamba.head_dim, 2 * mamba.groups * mamba.size
    projected, convolved = 2 * inner + shared + mamba.heads, inner + shared
    sections = {
        "mamba_in": (0, projected),
        "mamba_shared": (2 * inner, projected),
        "mamba_rates": (2 * inner + shared, projected),
        "mamba_conv": (0, convolved),
        "mamba_shared_conv": (inner, convolved),
    }
    return sections.get(kind, (0, 0))

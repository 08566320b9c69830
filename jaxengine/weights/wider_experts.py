"""Experts of a width that the devices cannot share: widened by zeros to what their kernels multiply at a time.

To the engine this is a model with wider experts. It computes the same function: an inner row is zero where gate and up
are, whatever the activation, and zeros add nothing. gpt-oss' 2880 are 360 for each of 8 devices; the kernels of 4 bits
read 64 at a time, so there they are 384.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource, parameter_table
from jaxengine.architecture.weight_format import Component, StoredWeight, WeightFormat
from jaxengine.device import DeviceTraits
from jaxengine.ops.packing import NARROWEST, codes_in_word

Index = tuple[slice, ...]
Read = Callable[[Index], np.ndarray]


@dataclass(frozen=True)
class WidenedSource:
    """`source` with experts of the inner width `width`."""

    source: ParameterSource
    width: int

    @property
    def spec(self) -> ModelSpec:
        spec = self.source.spec
        assert spec.experts is not None
        return replace(spec, experts=replace(spec.experts, ffn_size=self.width))

    @property
    def dtype(self) -> str:
        return self.source.dtype

    def read(self, name: str, index: Index) -> np.ndarray:
        narrow, wide = (parameter_table(spec)[name].shape for spec in (self.source.spec, self.spec))
        return _with_zeros(partial(self.source.read, name), narrow, wide, index)

    def stored(self, name: str) -> StoredWeight | None:
        stored = self.source.stored(name)
        narrow, wide = (parameter_table(spec)[name] for spec in (self.source.spec, self.spec))
        if stored is None or narrow == wide:
            return stored
        if stored.format.ordered:
            return None

        def read(component: Component, index: Index) -> np.ndarray:
            held, wanted = (parameter.component(component, stored.format).shape for parameter in (narrow, wide))
            return _with_zeros(partial(stored.read, component), held, wanted, index)

        return replace(stored, read=read)


def _with_zeros(read: Read, narrow: tuple[int, ...], wide: tuple[int, ...], index: Index) -> np.ndarray:
    """The slice `index` of an array of shape `wide`: zeros beyond the array of shape `narrow` that `read` has."""
    if narrow == wide:
        return read(index)
    full = (*index, *(slice(None) for _ in wide[len(index) :]))
    bounds = [cut.indices(extent)[:2] for cut, extent in zip(full, wide, strict=True)]
    there = [max(0, min(stop, extent) - start) for (start, stop), extent in zip(bounds, narrow, strict=True)]
    held = (slice(start, start + size) if size else slice(0, 1) for (start, _), size in zip(bounds, there, strict=True))
    values = read(tuple(held))[tuple(map(slice, there))]
    missing = [(0, stop - start - size) for (start, stop), size in zip(bounds, there, strict=True)]
    return np.pad(values, missing) if any(behind for _, behind in missing) else values


def widen_experts(source: ParameterSource, devices: int, device: DeviceTraits) -> ParameterSource:
    """`source` as the experts' kernels on `devices` devices can share it: itself where they can as it is."""
    experts = source.spec.experts
    if experts is None or not device.kernels:
        return source
    share = -(-experts.ffn_size // devices)
    whole = _whole(source, experts.ffn_size % (devices * NARROWEST) == 0)
    width = -(-share // whole) * whole * devices
    return source if width == experts.ffn_size else WidenedSource(source, width)


def _whole(source: ParameterSource, divides: bool) -> int:
    """What a device's share is a multiple of: whole groups, and what a kernel reads at a time. If 8 or 16 bits don't
    divide as they are, what 4 bits need, which may be made of them.
    """
    layers = (layer for layer in range(source.spec.num_layers) if source.spec.kind(layer).experts)
    found = (source.stored(f"layers.{layer}.experts_down") for layer in layers)
    units = {_unit(stored.format) for stored in found if stored is not None}
    return math.lcm(NARROWEST if divides else codes_in_word(4) * NARROWEST, *units)


def _unit(format: WeightFormat) -> int:
    return math.lcm(format.group or 1, codes_in_word(4) * NARROWEST if format.bits <= 4 else NARROWEST)

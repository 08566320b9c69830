"""Keys and values that fit a cache of 8 bits: each layer's are divided by the scales of a calibrated checkpoint.

The division is part of the weights, so a step pays nothing for it and no kernel knows of it. The weights that make keys
are divided by the scale of the keys, and the weights that make queries are multiplied by it, so their products stay the
same. The weights that make values are divided, and the output projection is multiplied. Scales are rounded up to powers
of two: these change no weight's digits, and an 8-bit float is as exact at one scale as at another while it holds the
largest value. Larger values still saturate (`jaxengine/ops/cache.py`). What an adapter adds to these products is scaled
as they are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from jaxengine.architecture.adaptation import Adaptable, AdapterReader, AdapterWeights, LowRank
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource
from jaxengine.architecture.weight_format import Component, StoredWeight

# Limits of a scale. With a smaller one, keys of 1000 overflow f16 when divided; with a larger, queries of 500 do when
# multiplied.
LEAST, MOST = 2.0**-6, 2.0**7

Index = tuple[slice, ...]


def calibrated(source: ParameterSource, cache_dtype: str) -> ParameterSource:
    """`source` for a cache of `cache_dtype`: itself, unless the cache has 8 bits and the checkpoint has scales.

    A model that clips its projections is left alone: a scale would move the limit, and its keys and values are small.
    So is one that normalises its values, which undoes a scale of what makes them, and so are latents, which are
    normalised.
    """
    spec, attention = source.spec, source.spec.attention
    limited = attention.clip or attention.value_norm or attention.latent
    if not cache_dtype.startswith("float8") or not spec.cache_scales or limited:
        return source
    return CalibratedSource(source)


def calibrate_adapters(reader: AdapterReader, source: ParameterSource) -> AdapterReader:
    """`reader` for what `calibrated` made of its model."""
    return CalibratedReader(reader, source) if isinstance(source, CalibratedSource) else reader


def whole_power(scale: float) -> float:
    """The power of two that `scale` is rounded up to, within limits."""
    return min(max(2.0 ** math.ceil(math.log2(scale)), LEAST), MOST)


def scaling(spec: ModelSpec) -> str:
    """What an 8-bit cache does with the keys and values of `spec`'s model, for the log."""
    if spec.attention.clip:
        return f"are clipped by the model at {spec.attention.clip}, and cached unscaled"
    if spec.attention.value_norm:
        return "are normalised by the model, and cached unscaled"
    if spec.attention.latent:
        return "are cached as normalised latents, unscaled"
    if not spec.cache_scales:
        return "are cached unscaled, and saturate: the checkpoint has no scales"
    return "are cached scaled as the checkpoint was calibrated"


@dataclass(frozen=True)
class CalibratedSource:
    """`source` with the scales of its specification worked into attention's parameters."""

    source: ParameterSource

    @cached_property
    def spec(self) -> ModelSpec:
        """The specification of `source`, but a norm that adds one to its weights gets weights with the one added.

        Otherwise the norm could not be scaled.
        """
        spec, norm = self.source.spec, self.source.spec.attention.qk_norm
        if norm is None or norm.kind != "rms_plus_one":
            return spec
        return replace(spec, attention=replace(spec.attention, qk_norm=replace(norm, kind="rms")))

    @property
    def dtype(self) -> str:
        return self.source.dtype

    def read(self, name: str, index: Index) -> np.ndarray:
        return self.scaled(name, self.source.read(name, index), index)

    def stored(self, name: str) -> StoredWeight | None:
        """A quantised matrix has its scales multiplied, and keeps its values and zeros."""
        stored = self.source.stored(name)
        if stored is None:
            return None

        def read(component: Component, index: Index) -> np.ndarray:
            array = stored.read(component, index)
            return self.scaled(name, array, index) if component == "scales" else array

        return replace(stored, read=read)

    def scaled(self, name: str, values: np.ndarray, index: Index) -> np.ndarray:
        """The slice `index` of an array that parameter `name` is proportional to, with the factors multiplied in."""
        layer, _, kind = name.removeprefix("layers.").rpartition(".")
        if not layer.isdigit() or kind not in ("qkv", "qkv_bias", "qk_norm", "qk_norm_bias", "out"):
            return values
        if kind == "qk_norm" and self.spec is not self.source.spec:
            values = 1 + values.astype(np.float32)
        factors = self._factors(int(layer), kind).astype(values.dtype)  # of each of the second axis' elements, or one
        if len(factors) > 1:
            factors = factors[index[1] if len(index) > 1 else slice(None)]
            factors = factors.reshape(1, -1, *(1,) * (values.ndim - 2))
        scaled: np.ndarray = values * factors
        return scaled

    def _factors(self, layer: int, kind: str) -> np.ndarray:
        spec = self.spec
        key, value = map(whole_power, spec.cache_scales[layer])
        if kind == "out":
            return np.array([value])
        normalised = spec.attention.qk_norm is not None and kind.startswith("qkv")  # what comes behind undoes a factor
        heads = [1.0] * (spec.group + 1) if normalised else [key] * spec.group + [1 / key]
        return np.array(heads if kind.startswith("qk_norm") else [*heads, 1 / value])


@dataclass(frozen=True)
class CalibratedReader:
    """The adapters of `reader` for the model of `source`: what they add to a product has its scale."""

    reader: AdapterReader
    source: CalibratedSource

    @property
    def targets(self) -> Mapping[str, Adaptable]:
        return self.reader.targets

    def read(self, name: str) -> AdapterWeights:
        adapter = self.reader.read(name)
        return replace(adapter, matrices={name: self._scaled(name, each) for name, each in adapter.matrices.items()})

    def _scaled(self, name: str, matrix: LowRank) -> LowRank:
        return replace(matrix, b=self.source.scaled(name, matrix.b, ()))

"""Relative positions: the bucket of each distance, and the bias that attention adds for it.

The formula is T5's (Raffel et al. 2019, arXiv 1910.10683; the authors' code and transformers agree). NumPy computes the
bucket once for every distance up to the largest that has a bucket of its own; on the device the biases are a table.
"""

import numpy as np
from jax import Array
from jax import numpy as jnp

from jaxengine.architecture.model import RelativePositions


def buckets_of(spec: RelativePositions, key: np.ndarray) -> np.ndarray:
    """The bucket of each key position `key`, relative to the query's: i64, shaped like `key`."""
    buckets = spec.buckets // 2 if spec.both_ways else spec.buckets
    behind = buckets * (key > 0) if spec.both_ways else 0
    distance = np.abs(key) if spec.both_ways else np.maximum(-key, 0)
    exact = buckets // 2
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / exact) / np.float32(np.log(spec.max_distance / exact))
    far = exact + (ratio * (buckets - exact)).astype(np.int64)
    return behind + np.where(distance < exact, distance, np.minimum(far, buckets - 1))  # type: ignore[no-any-return]


def by_distance(spec: RelativePositions, rows: Array) -> Array:
    """Learned rows [buckets, K, G] → f32 [K, G, 2m+1], the biases of distances -m … m (query position less key's)."""
    distance = np.arange(-spec.max_distance, spec.max_distance + 1)
    return jnp.moveaxis(rows.astype(jnp.float32)[buckets_of(spec, -distance)], 0, -1)

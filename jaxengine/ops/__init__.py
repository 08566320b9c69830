"""Paged attention behind one interface: write this step's keys and values, then let every query read its sequence.

A back end is a function `(q, keys, values, batch, spec, heads) → attended` on one device's heads; `paged_attention`
wraps it for the mesh and writes the cache. `reference` is plain JAX: the CPU's path and the oracle of every kernel.
`triton` is for NVIDIA GPUs. `choose` picks one at start; nothing falls back later.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from jaxengine.ops import reference, triton
from jaxengine.ops.batch import AttentionBatch, HeadTerms
from jaxengine.ops.choice import choose
from jaxengine.ops.spec import AttentionSpec
from jaxengine.sharding import TP

__all__ = ["BACKENDS", "AttentionBatch", "AttentionSpec", "HeadTerms", "PagedAttention", "choose", "paged_attention"]

Backend = Callable[[Array, Array, Array, AttentionBatch, AttentionSpec, HeadTerms], Array]
BACKENDS: dict[str, Backend] = {"reference": reference.attention, "triton": triton.attention}
NO_TERMS = HeadTerms()


class PagedAttention(Protocol):
    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        keys: Array,
        values: Array,
        batch: AttentionBatch,
        heads: HeadTerms = NO_TERMS,
    ) -> tuple[Array, Array, Array]:
        """q [T, K, G, D], k and v [T, K, D], caches [pages, page_size, K, D] → attended like q, and the new caches."""
        ...


@dataclass(frozen=True)
class _Sharded:
    """A back end over a mesh: each device attends with its own heads, nothing is communicated."""

    backend: Backend
    spec: AttentionSpec
    mesh: Mesh

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        keys: Array,
        values: Array,
        batch: AttentionBatch,
        heads: HeadTerms = NO_TERMS,
    ) -> tuple[Array, Array, Array]:
        by_token, cache, by_head = PartitionSpec(None, TP), PartitionSpec(None, None, TP), PartitionSpec(TP)
        return jax.shard_map(
            self._local,
            mesh=self.mesh,
            in_specs=(by_token, by_token, by_token, cache, cache, PartitionSpec(), by_head),
            out_specs=(by_token, cache, cache),
            check_vma=False,
        )(q, k, v, keys, values, batch, heads)

    def _local(
        self, q: Array, k: Array, v: Array, keys: Array, values: Array, batch: AttentionBatch, heads: HeadTerms
    ) -> tuple[Array, Array, Array]:
        at = (batch.page, batch.offset)
        keys = keys.at[at].set(_stored(k, keys.dtype), mode="drop")
        values = values.at[at].set(_stored(v, values.dtype), mode="drop")
        return self.backend(q, keys, values, batch, self.spec, heads), keys, values


def _stored(x: Array, dtype: jnp.dtype) -> Array:
    """`x` as the cache holds it. A plain cast to an 8-bit float makes NaN of what is out of range; this saturates."""
    if jnp.dtype(dtype).itemsize > 1:
        return x.astype(dtype)
    limit = float(jnp.finfo(dtype).max)
    return jnp.clip(x, -limit, limit).astype(dtype)


def paged_attention(backend: str, mesh: Mesh, spec: AttentionSpec | None = None) -> PagedAttention:
    """Paged attention by `backend` on `mesh`, for layers that `spec` describes.

    Raises:
        ValueError: no such back end.
    """
    if backend not in BACKENDS:
        raise ValueError(f"attention back end {backend!r} is not one of {', '.join(BACKENDS)}")
    return _Sharded(BACKENDS[backend], spec or AttentionSpec(), mesh)

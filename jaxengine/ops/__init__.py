"""Paged attention behind one interface: write this step's keys and values, then let every query read its sequence.

A back end is a function `(q, keys, values, batch) → attended` on one device's heads; `paged_attention` wraps it for the
mesh. `reference` is plain JAX: the CPU's path and the oracle of every kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import jax
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from jaxengine.ops import reference
from jaxengine.ops.batch import AttentionBatch
from jaxengine.sharding import TP

__all__ = ["BACKENDS", "AttentionBatch", "PagedAttention", "paged_attention"]

Backend = Literal["reference"]
BACKENDS: dict[str, Callable[[Array, Array, Array, AttentionBatch], Array]] = {"reference": reference.attention}


class PagedAttention(Protocol):
    def __call__(
        self, q: Array, k: Array, v: Array, keys: Array, values: Array, batch: AttentionBatch
    ) -> tuple[Array, Array, Array]:
        """q [T, K, G, D], k and v [T, K, D], caches [pages, page_size, K, D] → attended like q, and the new caches."""
        ...


@dataclass(frozen=True)
class _Sharded:
    """A back end over a mesh: each device attends with its own heads, nothing is communicated."""

    backend: Backend
    mesh: Mesh

    def __call__(
        self, q: Array, k: Array, v: Array, keys: Array, values: Array, batch: AttentionBatch
    ) -> tuple[Array, Array, Array]:
        heads, cache = PartitionSpec(None, TP), PartitionSpec(None, None, TP)
        return jax.shard_map(
            self._local,
            mesh=self.mesh,
            in_specs=(heads, heads, heads, cache, cache, PartitionSpec()),
            out_specs=(heads, cache, cache),
            check_vma=False,
        )(q, k, v, keys, values, batch)

    def _local(
        self, q: Array, k: Array, v: Array, keys: Array, values: Array, batch: AttentionBatch
    ) -> tuple[Array, Array, Array]:
        at = (batch.page, batch.offset)
        keys = keys.at[at].set(k.astype(keys.dtype), mode="drop")
        values = values.at[at].set(v.astype(values.dtype), mode="drop")
        return BACKENDS[self.backend](q, keys, values, batch), keys, values


def paged_attention(backend: str, mesh: Mesh) -> PagedAttention:
    """Paged attention by `backend` on `mesh`.

    Raises:
        ValueError: no such back end.
    """
    if backend not in BACKENDS:
        raise ValueError(f"attention back end {backend!r} is not one of {', '.join(BACKENDS)}")
    return _Sharded(backend, mesh)  # type: ignore[arg-type]

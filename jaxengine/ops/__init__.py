"""One interface to the back ends. A back end computes paged attention, and adds a branch to the residual stream
together with the norm that follows.

`reference` is plain JAX: the CPU's path and the oracle of every kernel. `triton` is for NVIDIA GPUs. `choose_backend`
picks one at start; nothing falls back later. `Ops` runs it on a mesh: each device attends with its own heads, norms are
computed by every device, and nothing is communicated.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jax import Array
from jax.sharding import Mesh, PartitionSpec

from jaxengine.architecture.model import Norm
from jaxengine.ops import norm, reference, triton
from jaxengine.ops.backend import choose_backend
from jaxengine.ops.batch import AttentionBias, RopeTables, StepBatch
from jaxengine.ops.cache import as_layer_sees
from jaxengine.ops.spec import AttentionSpec
from jaxengine.sharding import TP, by_device

__all__ = ["BACKENDS", "AttentionBias", "AttentionSpec", "Ops", "RopeTables", "StepBatch", "choose_backend"]

NO_BIAS, PLAIN_SPEC = AttentionBias(), AttentionSpec()
REPLICATED = PartitionSpec()


@dataclass(frozen=True)
class Backend:
    """Functions of one device's part of the arrays, with the arguments of `Ops`' methods; `spec` is passed by name."""

    attend: Callable[..., tuple[Array, Array, Array]]
    read: Callable[..., Array]
    add_norm: Callable[..., tuple[Array, Array]]


BACKENDS = {
    "reference": Backend(reference.attend, reference.read, norm.add_norm),
    "triton": Backend(triton.attend, triton.read, triton.add_norm),
}


@dataclass(frozen=True)
class Ops:
    """A back end on a mesh; without a mesh on one device, whichever that will be.

    split_heads: over the devices; else every device attends with all of them.

    Raises:
        ValueError: no such back end.
    """

    backend: str
    mesh: Mesh | None
    split_heads: bool = True

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"attention back end {self.backend!r} is not one of {', '.join(BACKENDS)}")

    def for_heads(self, kv_heads: int) -> "Ops":
        """The same, or where the devices cannot share `kv_heads` evenly, with all of them on each."""
        shared = self.mesh is None or kv_heads % self.mesh.size == 0
        return self if shared else replace(self, split_heads=False)

    def attend(
        self,
        qkv: Array,
        rope_tables: RopeTables | None,
        keys: Array,
        values: Array,
        batch: StepBatch,
        bias: AttentionBias = NO_BIAS,
        spec: AttentionSpec = PLAIN_SPEC,
    ) -> tuple[Array, Array, Array]:
        """Rotate queries and keys, write keys and values into the pages, and attend.

        Args:
            qkv: [T, K, G+2, D], for each key/value head its queries, then the key, then the value.
            rope_tables: cos and sin of each token; None rotates nothing.
            keys, values: the caches, [L, pages, page_size, K, D], of which `batch.layer` is read and written; of other
                heads with as many numbers, or some times as many, where `batch.part` is known.

        Returns:
            The attention output [T, K, G, D] and the new caches.
        """
        heads = TP if self.split_heads else None
        by_token, by_head = PartitionSpec(None, heads), PartitionSpec(heads)
        cache = PartitionSpec(None, None, None, heads)
        attend = partial(_attend, partial(BACKENDS[self.backend].attend, spec=spec))
        in_specs = (by_token, REPLICATED, cache, cache, REPLICATED, by_head)
        local = self._local(attend, in_specs, (by_token, cache, cache))
        return local(qkv, rope_tables, keys, values, batch, bias)  # type: ignore[no-any-return]

    def read(self, q: Array, keys: Array, values: Array, batch: StepBatch, spec: AttentionSpec) -> Array:
        """Attend with q [T, K, G, D] to caches without writing them → [T, K, G, D]: cross-attention to an encoder."""
        by_token, cache = PartitionSpec(None, TP), PartitionSpec(None, None, None, TP)
        read = partial(_read, partial(BACKENDS[self.backend].read, spec=spec))
        return self._local(read, (by_token, cache, cache, REPLICATED), by_token)(q, keys, values, batch)  # type: ignore[no-any-return]

    def add_norm(
        self, x: Array, branch: Array, weight: Array | None, bias: Array | None, order: Array | None, spec: Norm
    ) -> tuple[Array, Array]:
        """x and branch [T, hidden] → their sum and the norm of the sum, in `order` if there is one; others [hidden]."""
        add_norm = partial(BACKENDS[self.backend].add_norm, spec=spec)
        return self._local(add_norm, (REPLICATED,) * 5, (REPLICATED,) * 2)(x, branch, weight, bias, order)  # type: ignore[no-any-return]

    def _local(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """`function`, run by each device on its part of the arrays."""
        return by_device(function, self.mesh, in_specs, out_specs)


def _attend(
    attend: Callable[..., tuple[Array, Array, Array]],
    qkv: Array,
    rope_tables: RopeTables | None,
    keys: Array,
    values: Array,
    batch: StepBatch,
    bias: AttentionBias,
) -> tuple[Array, Array, Array]:
    """A back end's `attend` on one device's part of the caches, whatever heads they are shaped for."""
    seen_keys, seen_values, seen = as_layer_sees(keys, values, batch, qkv.shape[1], qkv.shape[3])
    attended, new_keys, new_values = attend(qkv, rope_tables, seen_keys, seen_values, seen, bias)
    return attended, new_keys.reshape(keys.shape), new_values.reshape(values.shape)


def _read(read: Callable[..., Array], q: Array, keys: Array, values: Array, batch: StepBatch) -> Array:
    """A back end's `read`, likewise."""
    return read(q, *as_layer_sees(keys, values, batch, q.shape[1], q.shape[3]))

"""What a back end computes of a layer, behind one interface: attention through the pages, and the residual's addition
with the norm behind it.

`reference` is plain JAX: the CPU's path and the oracle of every kernel. `triton` is for NVIDIA GPUs. `choose_backend`
picks one at start; nothing falls back later. `Ops` runs it on a mesh: each device attends with its own heads, norms are
computed by every device, and nothing is communicated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from jaxengine.ops import norm, reference, triton
from jaxengine.ops.backend import choose_backend
from jaxengine.ops.batch import AttentionBias, RopeTables, StepBatch
from jaxengine.ops.spec import AttentionSpec
from jaxengine.sharding import TP
from jaxengine.spec.model import Norm

__all__ = ["BACKENDS", "AttentionBias", "AttentionSpec", "Ops", "RopeTables", "StepBatch", "choose_backend"]

NO_TERMS, PLAIN = AttentionBias(), AttentionSpec()
REPLICATED = PartitionSpec()


@dataclass(frozen=True)
class Backend:
    """Functions of one device's share."""

    attend: Callable[..., tuple[Array, Array, Array]]  # as `Ops.attend`, its last argument by name
    read: Callable[..., Array]  # as `Ops.read`, likewise
    add_norm: Callable[..., tuple[Array, Array]]  # as `Ops.add_norm`, likewise


BACKENDS = {
    "reference": Backend(reference.attend, partial(reference.attention, heads=NO_TERMS), norm.add_norm),
    "triton": Backend(triton.attend, triton.read, triton.add_norm),
}


@dataclass(frozen=True)
class Ops:
    """A back end on a mesh.

    Raises:
        ValueError: no such back end.
    """

    backend: str
    mesh: Mesh

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"attention back end {self.backend!r} is not one of {', '.join(BACKENDS)}")

    def attend(
        self,
        qkv: Array,
        angles: RopeTables | None,
        keys: Array,
        values: Array,
        batch: StepBatch,
        heads: AttentionBias = NO_TERMS,
        spec: AttentionSpec = PLAIN,
    ) -> tuple[Array, Array, Array]:
        """Rotate queries and keys, write keys and values into the pages, and let every query read its sequence.

        Args:
            qkv: [T, K, G+2, D], of each key/value head its queries, the key and the value.
            angles: of each token; None rotates nothing.
            keys, values: the caches, [pages, page_size, K, D].

        Returns:
            What is attended to, [T, K, G, D], and the new caches.
        """
        by_token, cache, by_head = PartitionSpec(None, TP), PartitionSpec(None, None, TP), PartitionSpec(TP)
        attend = partial(BACKENDS[self.backend].attend, spec=spec)
        of_arguments = (by_token, REPLICATED, cache, cache, REPLICATED, by_head)
        local = self._local(attend, of_arguments, (by_token, cache, cache))
        return local(qkv, angles, keys, values, batch, heads)  # type: ignore[no-any-return]

    def read(self, q: Array, keys: Array, values: Array, batch: StepBatch, spec: AttentionSpec) -> Array:
        """q [T, K, G, D] over caches as they are → [T, K, G, D]: how a decoder reads its encoder's output."""
        by_token, cache = PartitionSpec(None, TP), PartitionSpec(None, None, TP)
        read = partial(BACKENDS[self.backend].read, spec=spec)
        return self._local(read, (by_token, cache, cache, REPLICATED), by_token)(q, keys, values, batch)  # type: ignore[no-any-return]

    def add_norm(
        self, x: Array, branch: Array, weight: Array | None, bias: Array | None, spec: Norm
    ) -> tuple[Array, Array]:
        """x and branch [T, hidden] → their sum and its norm; weight and bias [hidden]."""
        add_norm = partial(BACKENDS[self.backend].add_norm, spec=spec)
        return self._local(add_norm, (REPLICATED,) * 4, (REPLICATED,) * 2)(x, branch, weight, bias)  # type: ignore[no-any-return]

    def _local(self, function: Callable[..., Any], of_arguments: Any, of_results: Any) -> Callable[..., Any]:
        """`function` of each device's share."""
        return jax.shard_map(function, mesh=self.mesh, in_specs=of_arguments, out_specs=of_results, check_vma=False)

"""The experts of a layer: pairs of (token, expert), each through that expert's MLP, summed by weight.

Pairs are cut into blocks of rows that share one expert; each block is two ordinary products with that expert's
matrices. Work is proportional to the pairs, plus at most one padded block per expert: nothing ever has the size
tokens x experts (which `lax.ragged_dot` has on NVIDIA GPUs, JAX 0.10), and no expert without a pair is read.
`reference` loops over the blocks in plain JAX, the CPU's path and the kernels' oracle; with fewer pairs than experts a
block is a single pair, and of a handful of those the loop is unrolled (64 experts of 512 x 256, 8 to a token, 256
tokens: 0.08 s where all experts took 0.6 and `ragged_dot` 3.2; 8 experts of 1024 x 2048, 2 to a token: 0.7, 1.4, 1.4; 2
busy cores, JAX 0.10.2). GPUs take the kernels of `triton/experts`.

Over several devices every expert is split by its inner width, as an ordinary MLP is. Whole experts to a device would
leave a step waiting for the device with the most: of 128 experts, 8 to a token, over 8 devices, that one reads 2.5
times its share for one token, 1.7 times for 4 and 1.3 times for 16 (mean of 400 random draws; 8 experts, 2 to a token:
4, 1.5, 1). A split width is always even.

Legend: T tokens, k experts per token, E experts, F inner width, P = T k pairs, B rows of a block, N blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from jaxengine.ops.blocks import Blocks, single_pairs, sorted_blocks
from jaxengine.ops.matmul import matmul
from jaxengine.ops.triton import experts as triton
from jaxengine.sharding import TP

MAX_BLOCK = 128  # rows
UNROLLED = 16  # blocks

Scales = tuple[Array, Array]  # of matrices in 8 bits, f32: [E, 2 or 1, F] of the first and [E, hidden] of the second


@dataclass(frozen=True)
class ExpertMLPs:
    """down(act(up x)), or down(act(gate x) · up x), of each of E experts.

    Matrices are [E, hidden, 2 or 1, F] and [E, F, hidden] if `input_major`, else [E, 2 or 1, F, hidden] and
    [E, hidden, F], which is what the kernels want.
    """

    activation: Callable[[Array], Array]
    gated: bool
    input_major: bool

    def __call__(
        self, x: Array, weights: Array, chosen: Array, gate_up: Array, down: Array, scales: Scales | None = None
    ) -> Array:
        """x [T, hidden], weights f32 and chosen i32 [T, k] → [T, hidden], on the mesh that is set, if any."""
        if jax.sharding.get_abstract_mesh().empty:
            return self._local(x, weights, chosen, gate_up, down, scales)
        whole, inner = PartitionSpec(), (3, 1) if self.input_major else (2, 2)
        split = (PartitionSpec(*(None,) * axis, TP) for axis in inner)
        scaled = None if scales is None else (PartitionSpec(None, None, TP), whole)

        def local(*arguments: Any) -> Array:
            return jax.lax.psum(self._local(*arguments), TP)

        specs = (whole, whole, whole, *split, scaled)
        on_mesh = jax.shard_map(local, in_specs=specs, out_specs=whole, check_vma=False)
        return on_mesh(x, weights, chosen, gate_up, down, scales)

    def _local(
        self, x: Array, weights: Array, chosen: Array, gate_up: Array, down: Array, scales: Scales | None
    ) -> Array:
        pairs = self._reference if self.input_major else self._triton
        y = pairs(x, chosen, gate_up, down, scales)  # [T, k, hidden]
        return jnp.einsum("tk,tkh->th", weights, y.astype(jnp.float32)).astype(x.dtype)

    def _triton(self, x: Array, chosen: Array, gate_up: Array, down: Array, scales: Scales | None) -> Array:
        return triton.apply(x, chosen, gate_up, down, self.activation, scales)

    def _reference(self, x: Array, chosen: Array, gate_up: Array, down: Array, scales: Scales | None) -> Array:
        (pairs, experts), slot = self._blocks(chosen.reshape(-1), len(gate_up))
        rows = x.at[pairs // chosen.shape[1]].get(mode="fill", fill_value=0)  # [N, B, hidden]

        def block(_: None, part: tuple[Array, Array]) -> tuple[None, Array]:
            rows, expert = part
            own = scales and (scales[0][expert], scales[1][expert])
            return None, self._mlp(rows, gate_up[expert], down[expert], own)

        unroll = len(experts) if len(experts) <= UNROLLED else 1
        _, y = jax.lax.scan(block, None, (rows, experts), unroll=unroll)  # [N, B, hidden]
        y = y.reshape(-1, x.shape[1])[slot].reshape(*chosen.shape, -1)
        return jnp.where((chosen < len(gate_up))[..., None], y, 0)

    def _blocks(self, expert: Array, count: int) -> tuple[Blocks, Array]:
        size = len(expert)
        if size <= count:
            return single_pairs(expert), jnp.arange(size)
        return sorted_blocks(expert, count, min(MAX_BLOCK, 1 << (size // count).bit_length()))

    def _mlp(self, x: Array, gate_up: Array, down: Array, scales: Scales | None) -> Array:
        """One expert: x [B, hidden]."""
        of_up, of_down = scales or (None, None)
        inner = _product(x, gate_up.reshape(x.shape[1], -1), of_up).reshape(len(x), 2 if self.gated else 1, -1)
        activated = self.activation(inner[:, 0])
        return _product(activated * inner[:, 1] if self.gated else activated, down, of_down)


def _product(x: Array, matrix: Array, scale: Array | None) -> Array:
    """x [B, in] times `matrix` [in, out], whose columns have a `scale` if it is in 8 bits."""
    if scale is None:
        return matmul(x, matrix, 0, x.dtype)
    return (matmul(x, matrix, 0, jnp.dtype(jnp.float32)) * scale.reshape(-1)).astype(x.dtype)

"""The experts of a layer: each pair of (token, expert) goes through that expert's MLP, and a token's pairs are summed
by weight.

Pairs are grouped into blocks of rows that share one expert; a block is two ordinary products with that expert's
matrices. The work is proportional to the pairs, plus at most one padded block per expert: no array has the size
tokens x experts (as with `lax.ragged_dot` on NVIDIA GPUs, JAX 0.10), and no expert without a pair is read.

The CPU's path, also the oracle of the kernels, loops over the blocks in plain JAX. With fewer pairs than experts a
block is a single pair, and the loop over a few blocks is unrolled. Measured on 2 busy cores with JAX 0.10.2, in
seconds, against computing all experts and `ragged_dot`: 64 experts of 512 x 256, 8 per token, 256 tokens: 0.08, 0.6,
3.2; 8 experts of 1024 x 2048, 2 per token: 0.7, 1.4, 1.4. GPUs use the kernels of `triton/experts`.

Over several devices every expert is split by its inner width, like an ordinary MLP, so all devices work equally. With
whole experts on each device a step would wait for the busiest one. With 128 experts, 8 per token, over 8 devices, that
one reads 2.5 times the mean for one token, 1.7 times for 4 and 1.3 times for 16 (mean of 400 random draws; with 8
experts, 2 per token: 4, 1.5, 1).

Legend: T tokens, k experts per token, E experts, F inner width, P = T k pairs, B rows of a block, N blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.export import is_symbolic_dim
from jax.sharding import PartitionSpec

from jaxengine.ops.blocks import Blocks, single_pairs, sorted_blocks
from jaxengine.ops.matmul import matmul
from jaxengine.ops.triton import experts as triton
from jaxengine.ops.weight import Weight
from jaxengine.sharding import TP

MAX_BLOCK = 128  # rows
BLOCK = 32  # rows, where the number of tokens is not known before the program runs
UNROLLED = 16  # blocks


class ExpertBiases(NamedTuple):
    """What is added to the products of each expert."""

    gate_up: Array  # [E, 2 or 1, F]
    down: Array  # [E, hidden]


@dataclass(frozen=True)
class ExpertMLPs:
    """down(act(up x)), or down(act(gate x, up x)), of each of E experts.

    The stacks of weights stand for [E, 2 or 1, F, hidden] and [E, hidden, F]. Their layouts say whether the kernels
    multiply by them.
    """

    activation: Callable[..., Array]

    def __call__(
        self,
        x: Array,
        weights: Array,
        chosen: Array,
        gate_up: Weight,
        down: Weight,
        biases: ExpertBiases | None = None,
    ) -> Array:
        """x [T, hidden], weights f32 and chosen i32 [T, k] → [T, hidden], on the mesh that is set, if any."""
        bias = None if biases is None else biases.gate_up
        if jax.sharding.get_abstract_mesh().empty:
            mixed = self._local(x, weights, chosen, gate_up, down, bias)
        else:
            mixed = self._on_mesh(x, weights, chosen, gate_up, down, bias)
        if biases is None:
            return mixed
        of_down = biases.down.at[chosen].get(mode="fill", fill_value=0)  # [T, k, hidden], once for all devices
        return mixed + _weighted(weights, of_down, x.dtype)

    def _on_mesh(
        self, x: Array, weights: Array, chosen: Array, gate_up: Weight, down: Weight, bias: Array | None
    ) -> Array:
        whole = PartitionSpec()
        first, second = _partition(gate_up, (None, None, TP, None)), _partition(down, (None, None, TP))

        def local(*arguments: Any) -> Array:
            return jax.lax.psum(self._local(*arguments), TP)

        of_arguments = (whole, whole, whole, first, second, PartitionSpec(None, None, TP))
        on_mesh = jax.shard_map(local, in_specs=of_arguments, out_specs=whole, check_vma=False)
        return on_mesh(x, weights, chosen, gate_up, down, bias)

    def _local(
        self, x: Array, weights: Array, chosen: Array, gate_up: Weight, down: Weight, bias: Array | None
    ) -> Array:
        """Without the bias of the second product; `bias` is that of the first."""
        if gate_up.layout.kernels:
            y = triton.apply(x, chosen, gate_up, down, self.activation, bias)  # [T, k, hidden]
        else:
            y = self._reference(x, chosen, gate_up, down, bias)
        return _weighted(weights, y, x.dtype)

    def _reference(self, x: Array, chosen: Array, gate_up: Weight, down: Weight, bias: Array | None) -> Array:
        """As the kernels.

        Raises:
            ValueError: a format whose scales are not those of whole channels.
        """
        for format in (gate_up.layout.format, down.layout.format):
            if format is not None and not format.per_channel:
                raise ValueError(f"experts need one scale a channel here, format {format.name!r} has groups or zeros")
        count = len(gate_up.values)
        (pairs, experts), slot = self._blocks(chosen.reshape(-1), count)
        rows = x.at[pairs // chosen.shape[1]].get(mode="fill", fill_value=0)  # [N, B, hidden]

        def block(_: None, part: tuple[Array, Array]) -> tuple[None, Array]:
            rows, expert = part
            of_expert = None if bias is None else bias[expert]
            return None, self._mlp(rows, gate_up.matrix(expert), down.matrix(expert), of_expert)

        number = experts.shape[0]
        unroll = number if not is_symbolic_dim(number) and number <= UNROLLED else 1
        _, y = jax.lax.scan(block, None, (rows, experts), unroll=unroll)  # [N, B, hidden]
        y = y.reshape(-1, x.shape[1])[slot].reshape(*chosen.shape, -1)
        return jnp.where((chosen < count)[..., None], y, 0)

    def _blocks(self, expert: Array, count: int) -> tuple[Blocks, Array]:
        size = expert.shape[0]
        if is_symbolic_dim(size):
            return sorted_blocks(expert, count, BLOCK)
        if size <= count:
            return single_pairs(expert), jnp.arange(size)
        return sorted_blocks(expert, count, min(MAX_BLOCK, 1 << (size // count).bit_length()))

    def _mlp(self, x: Array, gate_up: Weight, down: Weight, bias: Array | None) -> Array:
        """One expert: x [B, hidden]."""
        width = down.values.shape[-1]
        inner = _scaled_matmul(x, gate_up).reshape(len(x), -1, width)  # [B, 2 or 1, F]
        inner = inner if bias is None else inner + bias
        return _scaled_matmul(self.activation(*(inner[:, i] for i in range(inner.shape[1]))), down)


def _weighted(weights: Array, y: Array, dtype: jnp.dtype) -> Array:
    """weights [T, k] and y [T, k, hidden] → [T, hidden]."""
    return jnp.einsum("tk,tkh->th", weights, y.astype(jnp.float32)).astype(dtype)


def _partition(weight: Weight, axes: tuple[str | None, ...]) -> Any:
    """How the arrays of the stack `weight` are split, where its axes in the parameter table are split as `axes`."""
    expert, *outputs, inputs = axes
    values = PartitionSpec(*axes)
    channels: Any = PartitionSpec(expert, *outputs)
    if weight.layout.grouped and weight.scales is not None:
        channels = PartitionSpec(expert, inputs if weight.scales.shape[1] > 1 else None, *outputs)
    shared = (None if each is None else channels for each in (weight.scales, weight.zeros))
    return Weight(values, weight.layout, *shared)  # type: ignore[arg-type]


def _scaled_matmul(x: Array, weight: Weight) -> Array:
    """x [B, in] times the matrix `weight` → [B, out], scaled where the weight has scales."""
    matrix = weight.values.reshape(-1, x.shape[1])
    if weight.scales is None:
        return matmul(x, matrix, x.dtype)
    y = matmul(x, matrix, jnp.dtype(jnp.float32), weight.layout.int8_as)
    return (y * weight.scales.reshape(-1)).astype(x.dtype)

"""The recurrence of a selective state space over a step's ragged rows, each continuing from its own page.

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t        y_t = C_t h_t

(Gu & Dao 2023, arXiv 2312.00752, algorithm 2.) A row whose first token has position 0 starts from zero, whatever its
page holds, because a page is not cleared when another sequence takes it. A back end is a function of one device's
channels; `state_scan` runs it on a mesh. `reference` is plain JAX, the CPU's path and the oracle of the GPU kernel in
`triton/scan`. It computes token by token, so that nothing larger than one state exists beside the pages.

Legend: L layers in the caches, T tokens, C channels, N states of a channel.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from jaxengine.ops.batch import ScanInputs, StepBatch, row_starts, settled_ends, unfolded
from jaxengine.ops.triton import scan as triton
from jaxengine.sharding import TP, by_device

Scan = Callable[[ScanInputs, Array, StepBatch], tuple[Array, Array]]


def reference(inputs: ScanInputs, states: Array, batch: StepBatch) -> tuple[Array, Array]:
    """states [L, pages, C, N] → y [T, C], 0 for padding in a ragged step, and states after each row's last token."""
    return (_ragged if batch.ragged else _one_token_each)(inputs, states, unfolded(batch))


def _one_token_each(inputs: ScanInputs, states: Array, batch: StepBatch) -> tuple[Array, Array]:
    x, dt, b, c, a = _wide(inputs)
    old = jnp.where((batch.position > 0)[:, None, None], states[batch.layer, batch.page], 0)  # [T, C, N]
    new = jnp.exp(dt[:, :, None] * a) * old + (dt * x)[:, :, None] * b[:, None]
    return (new * c[:, None]).sum(-1), states.at[batch.layer, batch.page].set(new, mode="drop")


def _ragged(inputs: ScanInputs, states: Array, batch: StepBatch) -> tuple[Array, Array]:
    x, dt, b, c, a = _wide(inputs)
    starts = row_starts(batch)
    ends = settled_ends(batch, starts)

    def token(t: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        y, states, old = carry
        page, row = batch.page[t], batch.row[t]
        stored = states[batch.layer, page]  # [C, N]
        old = jnp.where(t == starts[row], jnp.where(batch.position[t] > 0, stored, 0), old)
        new = jnp.exp(dt[t][:, None] * a) * old + (dt[t] * x[t])[:, None] * b[t]
        kept = states.at[batch.layer, page].set(jnp.where(t < ends[row], new, stored))
        return y.at[t].set(new @ c[t]), kept, new

    of_row = jnp.zeros(states.shape[2:], states.dtype)
    return jax.lax.fori_loop(0, batch.tokens, token, (jnp.zeros_like(x), states, of_row))[:2]


def _wide(inputs: ScanInputs) -> ScanInputs:
    return inputs._replace(x=inputs.x.astype(jnp.float32))


SCANS: dict[str, Scan] = {"reference": reference, "triton": triton.scan}


def state_scan(backend: str, mesh: Mesh | None) -> Scan:
    """The scan of `backend` on a mesh: each device scans its own channels, nothing is communicated."""
    by_token, by_channel, everywhere = PartitionSpec(None, TP), PartitionSpec(TP), PartitionSpec()
    inputs = ScanInputs(by_token, by_token, everywhere, everywhere, by_channel)  # type: ignore[arg-type]
    states = PartitionSpec(None, None, TP)
    return by_device(SCANS[backend], mesh, (inputs, states, everywhere), (by_token, states))

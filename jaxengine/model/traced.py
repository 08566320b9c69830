"""Models that no family describes: transformers' own module, traced from PyTorch to JAX, with our paged attention.

Best effort, with the extra `hf`: torchax does the tracing. The module computes everything but attention, which it hands
to us through transformers' attention interface, and the output embedding, which is left out: what reaches it are the
hidden states. The trace is an ordinary step, compiled ahead of time; no PyTorch runs while serving. Refused at start,
with the reason, is a module that cannot be traced, whose layers do not attend through the interface once each, or that
masks in its own way; `convert/hf/probe.py` has looked at the rest before. On one device, with matrices as PyTorch has
them.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.model.torch_module import Call, Layers, TorchModule
from jaxengine.ops import Ops, StepBatch
from jaxengine.spec.model import ModelSpec

TRIAL_TOKENS, TRIAL_PAGE = 4, 16


class TracedDecoder(nnx.Module):
    """Like `Decoder`: token ids to hidden states, writing keys and values into pages on the way.

    Raises:
        ValueError: the module cannot be traced; the message says why.
    """

    def __init__(self, spec: ModelSpec, parameters: dict[str, Any], ops: Ops) -> None:
        assert spec.traced is not None
        self.spec = spec
        self.ops = ops
        self.module = TorchModule(spec)
        self.names = (spec.traced.embedding, *(array.name for array in spec.traced.arrays))
        arrays = (parameters["embedding"], *(parameters[f"module.{name}"] for name in self.names[1:]))
        self.arrays = nnx.List(nnx.Param(array) for array in arrays)
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
        jax.eval_shape(self._run, shapes, *self._trial(arrays[0].dtype))

    def __call__(self, ids: Array, layers: Any, batches: Sequence[StepBatch]) -> tuple[Array, Layers]:
        """ids [T] → hidden states [T, hidden], and the caches with these tokens written. All layers share one table."""
        (batch,) = batches
        return self._run([array[...] for array in self.arrays], ids, layers, batch)

    def _run(self, arrays: list[Array], ids: Array, layers: Any, batch: StepBatch) -> tuple[Array, Layers]:
        call = Call(self.spec, self.ops, batch, list(layers))
        hidden = self.module(dict(zip(self.names, arrays, strict=True)), ids, batch.position, call)
        return hidden.astype(arrays[0].dtype), call.layers

    def _trial(self, dtype: Any) -> tuple[Any, Any, StepBatch]:
        """Shapes of a step, for a trace that shows whether there can be others."""
        spec = self.spec
        tokens: Any = jax.ShapeDtypeStruct((TRIAL_TOKENS,), jnp.int32)
        cache = jax.ShapeDtypeStruct((2, TRIAL_PAGE, spec.num_kv_heads, spec.head_dim), dtype)
        table: Any = jax.ShapeDtypeStruct((TRIAL_TOKENS, 128 // TRIAL_PAGE), jnp.int32)
        count: Any = jax.ShapeDtypeStruct((), jnp.int32)
        batch = StepBatch(tokens, tokens, tokens, tokens, tokens, table, count, ragged=False)
        return tokens, [(cache, cache)] * spec.num_layers, batch

"""Models that no family describes: transformers' own module, traced from PyTorch to JAX, with our paged attention.

This is best effort and needs the extra `hf`: torchax does the tracing. The module computes everything except attention,
which transformers' attention interface passes to us, and the output embedding, which is replaced by one that returns
its input, the hidden states. The trace becomes an ordinary step, compiled ahead of time; no PyTorch runs while serving.

A module is refused at start, with the reason, if it cannot be traced, if a layer does not attend through the interface
exactly once, or if it has masks of its own. `convert/hf/probe.py` has checked the rest before. Traced models run on one
device, with matrices in PyTorch's order.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.model.cache import LayerCaches
from jaxengine.model.decoder import Layers
from jaxengine.model.torch_module import TorchModule, TracedStep
from jaxengine.ops import Ops, StepBatch

PROBE_TOKENS, PROBE_PAGE = 4, 16


class TracedDecoder(nnx.Module):
    """Like `Decoder`: token ids to hidden states; writes keys and values to the pages.

    Raises:
        ValueError: the module cannot be traced; the message says why.
    """

    def __init__(self, spec: ModelSpec, parameters: dict[str, Any], ops: Ops) -> None:
        assert spec.traced is not None
        self.spec = spec
        self.ops = ops
        self.module = TorchModule(spec)
        self.names = (spec.traced.embedding, *(array.name for array in spec.traced.arrays))
        arrays = (parameters["embedding"].values, *(parameters[f"module.{name}"] for name in self.names[1:]))
        self.arrays = nnx.List(nnx.Param(array) for array in arrays)
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
        jax.eval_shape(self._run, shapes, *self._probe_step(arrays[0].dtype))

    def __call__(
        self, ids: Array, layers: Any, batches: Sequence[StepBatch], images: None = None
    ) -> tuple[Array, Layers]:
        """ids [T] → hidden states [T, hidden], and the caches with these tokens written. All layers share one table.
        No such model sees `images`.
        """
        (batch,) = batches
        return self._run([array[...] for array in self.arrays], ids, layers, batch)

    def _run(self, arrays: list[Array], ids: Array, layers: Any, batch: StepBatch) -> tuple[Array, Layers]:
        step = TracedStep(self.spec, self.ops, batch, LayerCaches(layers))
        hidden = self.module(dict(zip(self.names, arrays, strict=True)), ids, batch.position, step)
        return hidden.astype(arrays[0].dtype), tuple(step.caches.arrays)

    def _probe_step(self, dtype: Any) -> tuple[Any, Any, StepBatch]:
        """Abstract arguments of a small step: tracing it at start shows whether the module can be traced at all."""
        spec = self.spec
        tokens: Any = jax.ShapeDtypeStruct((PROBE_TOKENS,), jnp.int32)
        cache = jax.ShapeDtypeStruct((spec.num_layers, 2, PROBE_PAGE, spec.num_kv_heads, spec.head_dim), dtype)
        table: Any = jax.ShapeDtypeStruct((PROBE_TOKENS, 128 // PROBE_PAGE), jnp.int32)
        count: Any = jax.ShapeDtypeStruct((), jnp.int32)
        batch = StepBatch(tokens, tokens, tokens, tokens, tokens, table, count, ragged=False)
        return tokens, (cache, cache), batch

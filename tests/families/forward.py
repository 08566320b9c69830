"""A decoder and its head without an engine: one compiled prefill and one compiled decode step over a tiny paged cache.

An engine compiles samplers and buckets that say nothing about a family; this is what is left when they are taken away.
"""

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxengine.loading import load_parameters
from jaxengine.model.decoder import Decoder
from jaxengine.model.embedding import Head
from jaxengine.model.spec import ParameterSource
from jaxengine.ops import AttentionBatch, paged_attention
from jaxengine.sharding import make_mesh

PAGE, WIDTH = 16, 8  # the reference back end reads keys in blocks of 128
TOKENS = 48  # of the prefill step


@dataclass
class Forward:
    """Logits of `source`'s model in f32. Sequences live in numbered rooms of eight pages each."""

    source: ParameterSource
    rooms: int = 2
    step: Any = field(init=False)

    def __post_init__(self) -> None:
        mesh, spec = make_mesh(), self.source.spec
        parameters: dict[str, Any] = load_parameters(self.source, mesh, "float32", "cpu", lambda *_: None)
        decoder = Decoder(spec, parameters, "cpu", functools.partial(paged_attention, "reference", mesh))
        graph, state = nnx.split((decoder, Head(spec, parameters.get, "cpu")))
        self.step = functools.partial(_step, graph, state)
        shape = (1 + self.rooms * WIDTH, PAGE, spec.num_kv_heads, spec.head_dim)
        self.caches = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in range(spec.num_layers)]
        self.tables = 1 + np.arange(self.rooms * WIDTH, dtype=np.int32).reshape(self.rooms, WIDTH)

    def share(self, source: int, target: int, pages: int) -> None:
        """Let room `target` begin with the first `pages` of room `source`."""
        self.tables[target, :pages] = self.tables[source, :pages]

    def prefill(self, room: int, ids: list[int], start: int, prompt_length: int) -> np.ndarray:
        """Logits [len(ids), vocab] of `ids` at positions from `start` on."""
        return self._run(room, ids, start, prompt_length, TOKENS, ragged=True)

    def decode(self, room: int, token: int, position: int, prompt_length: int) -> np.ndarray:
        """Logits [vocab] after `token`."""
        return self._run(room, [token], position, prompt_length, 1, ragged=False)[0]

    def _run(
        self, room: int, ids: list[int], start: int, prompt_length: int, tokens: int, *, ragged: bool
    ) -> np.ndarray:
        real = np.arange(tokens) < len(ids)
        position = np.where(real, start + np.arange(tokens), 0)
        batch = AttentionBatch(
            position=jnp.asarray(position, jnp.int32),
            prompt_length=jnp.where(real, prompt_length, 0).astype(jnp.int32),
            row=jnp.where(real, 0, 1).astype(jnp.int32),
            page=jnp.where(real, self.tables[room][position // PAGE], 0).astype(jnp.int32),
            offset=jnp.asarray(position % PAGE, jnp.int32),
            tables=jnp.asarray(self.tables[room : room + 1]),
            tokens=jnp.int32(len(ids)),
            ragged=ragged,
        )
        padded = jnp.asarray(np.pad(ids, (0, tokens - len(ids))), jnp.int32)
        logits, self.caches = self.step(padded, self.caches, batch)
        return np.asarray(logits)[: len(ids)]


@functools.partial(jax.jit, static_argnums=0)
def _step(graph: Any, state: Any, ids: jax.Array, caches: Any, batch: AttentionBatch) -> tuple[jax.Array, Any]:
    decoder, head = nnx.merge(graph, state)
    hidden, caches = decoder(ids, caches, batch)
    return head(hidden), caches

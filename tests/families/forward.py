"""A model without an engine: compiled steps for prefill, decode and encoder over a tiny paged cache.

An engine also compiles samplers and buckets, which take long and show nothing about a family.
"""

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxengine.architecture.adaptation import AdapterReader, AdapterShapes
from jaxengine.architecture.layer_groups import LayerGroups
from jaxengine.architecture.parameters import ParameterSource
from jaxengine.device import CPU, DeviceTraits
from jaxengine.model.adapters import abstract_adapters, loaded
from jaxengine.model.cache import cache_arrays, slot_arrays
from jaxengine.model.decoder import Decoder
from jaxengine.model.embedding import Head
from jaxengine.model.encoder import Encoder
from jaxengine.model.linear import ADAPTERS
from jaxengine.model.traced import TracedDecoder
from jaxengine.ops import Ops, StepBatch
from jaxengine.ops.adapters import AdapterStack, AdapterTokens
from jaxengine.sharding import check_divisible, make_mesh
from jaxengine.weights.kv_heads import replicate_adapters, replicate_heads
from jaxengine.weights.kv_scales import calibrate_adapters
from jaxengine.weights.loading import load_parameters

PAGE, SLOT_PAGES = 16, 8  # tokens, pages: the reference back end reads keys in blocks of 128
TOKENS = 64  # of a prefill step, in whole blocks of 32
ADAPTER_SLOTS, ADAPTER_RANK = 2, 8


@dataclass
class Forward:
    """Logits of `source`'s model in f32. Sequences have numbered slots of eight pages each, in every page table.

    adapter: of all tokens, and what reads it. It lies in the last slot of the stacks.
    """

    source: ParameterSource
    slots: int = 2
    quantize: str | None = None
    devices: int = 1
    device: DeviceTraits = CPU
    adapter: tuple[AdapterReader, str] | None = None
    step: Any = field(init=False)

    def __post_init__(self) -> None:
        self.source = replicate_heads(self.source, self.devices)
        mesh, spec = make_mesh(self.devices), self.source.spec
        check_divisible(spec, self.devices)
        parameters: dict[str, Any] = load_parameters(
            self.source, mesh, "float32", self.device, lambda *_: None, self.quantize
        )
        if self.adapter:
            parameters |= self._stacks(*self.adapter)
        ops = Ops("reference", mesh)
        decoder = TracedDecoder(spec, parameters, ops) if spec.traced else Decoder(spec, parameters, self.device, ops)
        if spec.encoder:
            self.encoder = functools.partial(_encode, *nnx.split(Encoder(spec, parameters, self.device, ops)))
        graph, state = nnx.split((decoder, Head(spec, parameters.get)))
        self.step = functools.partial(_step, graph, state)
        groups = LayerGroups.of(spec)
        pages = 1 + len(groups.windows) * self.slots * SLOT_PAGES
        arrays = (
            *cache_arrays(spec, groups.arrays, pages, PAGE, "float32"),
            *slot_arrays(spec, 1 + self.slots, "float32"),
        )
        self.page_size = SLOT_PAGES * PAGE if spec.state_space else PAGE  # a page of states is a whole sequence
        self.caches = tuple(jnp.zeros(shape) for shape, _, _ in arrays)
        self.first_pages = [table * self.slots * SLOT_PAGES for table in range(len(groups.windows))]
        self.encoded: dict[int, int] = {}  # by slot, how many tokens the encoder has read
        self.tables = 1 + np.arange(self.slots * SLOT_PAGES, dtype=np.int32).reshape(self.slots, SLOT_PAGES)

    def _stacks(self, reader: AdapterReader, name: str) -> dict[str, AdapterStack]:
        """The stacks of adapters as parameters, with adapter `name` in the last slot."""
        reader = calibrate_adapters(replicate_adapters(reader, self.source), self.source)
        shapes = AdapterShapes(reader.targets, ADAPTER_SLOTS, ADAPTER_RANK, "float32")
        abstract = abstract_adapters(self.source.spec, shapes, make_mesh(self.devices), self.device)
        adapter, made = loaded(reader.read(name), abstract, shapes), {}
        for matrix, stack in abstract.items():
            a, b = np.zeros(stack.a.shape, np.float32), np.zeros(stack.b.shape, np.float32)
            if matrix in adapter.arrays:
                a[-1], b[:, -1] = adapter.arrays[matrix]
            put = [jax.device_put(whole, each.sharding) for whole, each in ((a, stack.a), (b, stack.b))]
            made[f"{matrix}{ADAPTERS}"] = replace(stack, a=put[0], b=put[1])
        return made

    def share(self, source: int, target: int, pages: int) -> None:
        """Let slot `target` begin with the first `pages` of slot `source`."""
        self.tables[target, :pages] = self.tables[source, :pages]

    def prefill(self, slot: int, ids: list[int], start: int, prompt_length: int) -> np.ndarray:
        """Logits [len(ids), vocab] of `ids` at positions from `start` on."""
        return self._run(slot, ids, start, prompt_length, TOKENS, ragged=True)

    def decode(self, slot: int, token: int, position: int, prompt_length: int) -> np.ndarray:
        """Logits [vocab] after `token`."""
        return self._run(slot, [token], position, prompt_length, 1, ragged=False)[0]

    def encode(self, slot: int, ids: list[int]) -> None:
        """Let the encoder read `ids`. They take the first pages of the slot; the decoder's tokens go behind them."""
        batch = _batch(self.tables[slot], len(ids), 0, 0, TOKENS, PAGE, ragged=True)
        self.caches = self.encoder(
            _padded(ids, TOKENS), self.caches, replace(batch, noncausal_length=batch.row * 0 + len(ids))
        )
        self.encoded[slot] = len(ids)

    def _run(
        self, slot: int, ids: list[int], start: int, prompt_length: int, tokens: int, *, ragged: bool
    ) -> np.ndarray:
        table, source = self.tables[slot], self.encoded.get(slot, 0)
        table = np.roll(table, -source // PAGE)
        batches = [
            _batch(first + table, len(ids), start, prompt_length, tokens, self.page_size, ragged=ragged)
            for first in self.first_pages
        ]
        if self.source.spec.recurrent_layers:
            slot_of = jnp.int32(1 + slot)
            batches.append(replace(batches[0], page=batches[0].page * 0 + slot_of, tables=slot_of[None, None]))
        if source:
            tables, batch = jnp.asarray(self.tables[slot : slot + 1]), batches[0]
            batches = [replace(batch, cross=replace(batch, tables=tables, noncausal_length=batch.row * 0 + source))]
        if self.adapter:
            slot_of = jnp.full(tokens, ADAPTER_SLOTS - 1)
            batches = [replace(batch, adapters=AdapterTokens.of(slot_of, ADAPTER_SLOTS)) for batch in batches]
        logits, self.caches = self.step(_padded(ids, tokens), self.caches, batches)
        return np.asarray(logits)[: len(ids)]


def _batch(
    table: np.ndarray, count: int, start: int, prompt_length: int, tokens: int, page_size: int, *, ragged: bool
) -> StepBatch:
    real = np.arange(tokens) < count
    position = np.where(real, start + np.arange(tokens), 0)
    return StepBatch(
        position=jnp.asarray(position, jnp.int32),
        rope_length=jnp.where(real, prompt_length, 0).astype(jnp.int32),
        row=jnp.where(real, 0, 1).astype(jnp.int32),
        page=jnp.where(real, table[position // page_size], 0).astype(jnp.int32),
        offset=jnp.asarray(position % page_size, jnp.int32),
        tables=jnp.asarray(table[None]),
        tokens=jnp.int32(count),
        ragged=ragged,
    )


def _padded(ids: list[int], tokens: int) -> jax.Array:
    return jnp.asarray(np.pad(ids, (0, tokens - len(ids))), jnp.int32)


@functools.partial(jax.jit, static_argnums=0)
def _encode(graph: Any, state: Any, ids: jax.Array, caches: Any, batch: StepBatch) -> Any:
    return nnx.merge(graph, state)(ids, caches, batch)


@functools.partial(jax.jit, static_argnums=0)
def _step(graph: Any, state: Any, ids: jax.Array, caches: Any, batches: Any) -> tuple[jax.Array, Any]:
    decoder, head = nnx.merge(graph, state)
    hidden, caches = decoder(ids, caches, batches)
    return head(hidden), caches

"""Which layers share a page table.

A layer that sees all positions needs every page of a sequence. A layer with a window needs the last few. So a sequence
has page tables of its own for each window. All tables take pages from one pool, so a page has the same size for each:
it spans `arrays` layers. That is at most the number of layers with the rarest window, and the layers of the other
windows are divided into tables of as many. Layers with the same place in their tables share one of a cache's layers,
as a page belongs to one table at a time. A free page serves any table. So one pool suits short texts, which every layer
needs whole, and long texts, which few layers do.

A layer that attends to pictures, or not at all, keeps no keys and values of the text: it has no place in a page, and
its entry means nothing. One that reads the keys and values of another has that layer's place. What layers that keep
states keep lies in the sequence's slot.

Layers may differ in how much they keep of a token. A place of a page then holds as much as the least common multiple of
their sizes, and those that keep less lie in one place in as many as fit: it is divided into parts, one for each, and
none is padded. In all of Gemma 4's published models some layers keep twice as much as the others: 16 heads of 256
beside 4 of 512 (31B), 8 beside 2 (26B-A4B), 1 of 256 beside 1 of 512 (E2B), 2 beside 2 (E4B).

Gemma 2 has 2 tables, Gemma 3 has 1 for its layers without a window and 5 or 6 for the others, Gemma 4's 31B 1 and 10.
"""

import math
from dataclasses import dataclass
from typing import Self

from jaxengine.architecture.model import LayerKind, ModelSpec

MOST_TABLES = 12  # of a page that spans the layers of the rarest window alone
FEWER_TABLES = 8  # about, where these are more: one rare layer must not divide the others into dozens of tables
MOST_PARTS = 16  # of a place


@dataclass(frozen=True)
class LayerGroups:
    """How a model's layers share pages.

    windows: how many positions the layers of each table see; 0 is all of them, and comes first.
    layers: each layer's table, and its place in a page.
    parts: which part of its place a layer has, and of how many.
    """

    windows: tuple[int, ...]
    layers: tuple[tuple[int, int], ...]
    parts: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, spec: ModelSpec) -> Self:
        kinds = {layer: (spec.kind(layer).window, parts_of_place(spec, spec.kind(layer))) for layer in spec.own_layers}
        alike = {kind: [layer for layer, each in kinds.items() if each == kind] for kind in sorted(set(kinds.values()))}
        places = [-(-len(layers) // parts) for (_, parts), layers in alike.items()]
        arrays = min(places)
        if sum(-(-each // arrays) for each in places) > MOST_TABLES:
            arrays = max(arrays, -(-sum(places) // FEWER_TABLES))
        windows: list[int] = []
        found: dict[int, tuple[tuple[int, int], tuple[int, int]]] = {}
        for ((window, parts), layers), count in zip(alike.items(), places, strict=True):
            for i, layer in enumerate(layers):  # of one kind
                table, place = divmod(i // parts, arrays)
                found[layer] = (len(windows) + table, place), (i % parts, parts)
            windows += [window] * -(-count // arrays)
        nowhere = ((0, 0), (0, 1))
        own = [found.get(layer, nowhere) for layer in _kept_by(spec)]
        return cls(tuple(windows), tuple(place for place, _ in own), tuple(part for _, part in own))

    @classmethod
    def undivided(cls, spec: ModelSpec) -> Self:
        """One table for all layers, whatever they see of it, and a place for each that keeps something."""
        parts = tuple((0, parts_of_place(spec, spec.kind(layer))) for layer in range(spec.num_layers))
        return cls((0,), tuple((0, layer) for layer in _kept_by(spec)), parts)

    @property
    def arrays(self) -> int:
        """How many layers a page spans."""
        return 1 + max(place for _, place in self.layers)


def _kept_by(spec: ModelSpec) -> list[int]:
    """The layer that keeps what each layer attends to: itself, or the one whose keys and values it reads."""
    reads = (spec.kind(layer).reads for layer in range(spec.num_layers))
    return [layer if read is None else read for layer, read in enumerate(reads)]


def place_size(spec: ModelSpec) -> tuple[int, int]:
    """What a place of a page keeps of a token, as heads that devices share and numbers of each: of keys, or of values.

    Raises:
        ValueError: layers are of sizes that have no common place.
    """
    sizes = spec.heads
    if len(sizes) == 1:
        return sizes[0]
    whole, heads = math.lcm(*(kv * dim for kv, dim in sizes)), math.gcd(*(kv for kv, _ in sizes))
    if whole > MOST_PARTS * min(kv * dim for kv, dim in sizes):
        described = " and ".join(f"{kv} key/value heads of {dim}" for kv, dim in sizes)
        raise ValueError(f"layers of {described} have no common page of at most {MOST_PARTS} of the least")
    return heads, whole // heads


def parts_of_place(spec: ModelSpec, kind: LayerKind) -> int:
    """How many layers of `kind` share a place."""
    heads, width = place_size(spec)
    return heads * width // max(1, (kind.kv_heads or spec.num_kv_heads) * (kind.head_dim or spec.head_dim)) or 1

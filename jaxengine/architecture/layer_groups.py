"""Which layers share a page table.

A layer that sees all positions needs every page of a sequence. A layer with a window needs the last few. So a sequence
has page tables of its own for each window. All tables take pages from one pool, so a page has the same size for each:
it spans `arrays` layers. That is at most the number of layers with the rarest window, and the layers of the other
windows are divided into tables of as many. Layers with the same place in their tables share one of a cache's layers,
as a page belongs to one table at a time. A free page serves any table. So one pool suits short texts, which every layer
needs whole, and long texts, which few layers do.

A layer that attends to pictures, or not at all, keeps no keys and values of the text: it has no place in a page, and
its entry means nothing. What layers that keep states keep lies in the sequence's slot.

Gemma 2 has 2 tables, Gemma 3 has 1 for its layers without a window and 5 or 6 for the others.
"""

from dataclasses import dataclass
from typing import Self

from jaxengine.architecture.model import ModelSpec

MOST_TABLES = 8  # about: one rare layer must not divide the others into dozens of tables


@dataclass(frozen=True)
class LayerGroups:
    """How a model's layers share pages.

    windows: how many positions the layers of each table see; 0 is all of them, and comes first.
    layers: each layer's table, and its place in a page.
    """

    windows: tuple[int, ...]
    layers: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, spec: ModelSpec) -> Self:
        own = spec.attending_layers
        seen = [spec.kind(layer).window for layer in own]
        arrays = max(min(map(seen.count, seen)), -(-len(own) // MOST_TABLES))
        windows: list[int] = []
        layers: dict[int, tuple[int, int]] = dict.fromkeys(range(spec.num_layers), (0, 0))
        for window in sorted(set(seen)):
            alike = [layer for layer, each in zip(own, seen, strict=True) if each == window]
            for i, layer in enumerate(alike):
                layers[layer] = (len(windows) + i // arrays, i % arrays)
            windows += [window] * -(-len(alike) // arrays)
        return cls(tuple(windows), tuple(layers[layer] for layer in range(spec.num_layers)))

    @classmethod
    def undivided(cls, spec: ModelSpec) -> Self:
        """One table for all layers, whatever they see of it."""
        return cls((0,), tuple((0, layer) for layer in range(spec.num_layers)))

    @property
    def arrays(self) -> int:
        """How many layers a page spans."""
        return 1 + max(place for _, place in self.layers)

"""Which layers keep their keys and values in pages of their own.

Layers that see all positions need every page of a sequence, layers with a window only the last few: so a sequence has a
page table for each. All tables draw from one pool, and so a page must be as large for each of them: it spans `arrays`
layers, no more than there are layers with the rarest window, and the others are parted into tables of as many. The
layers of one place share their caches, since a page belongs to one table at a time. What is free serves any table:
short texts, of which every layer needs all, and long ones, of which few do, find room in the same bytes.

Gemma 2 has 2 tables, Gemma 3 has 1 for its layers without a window and 5 or 6 for the others.
"""

from dataclasses import dataclass
from typing import Self

from jaxengine.spec.model import ModelSpec

MOST_TABLES = 8  # about: one rare layer must not part the others into dozens


@dataclass(frozen=True)
class LayerGroups:
    """How a model's layers share pages.

    windows: of each table, what its layers see; 0 = all, and those come first.
    layers: of each layer, its table and its place in a page.
    """

    windows: tuple[int, ...]
    layers: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, spec: ModelSpec) -> Self:
        seen = [spec.kind(layer).window for layer in range(spec.num_layers)]
        arrays = max(min(map(seen.count, seen)), -(-spec.num_layers // MOST_TABLES))
        windows: list[int] = []
        layers: dict[int, tuple[int, int]] = {}
        for window in sorted(set(seen)):
            alike = [layer for layer, each in enumerate(seen) if each == window]
            for i, layer in enumerate(alike):
                layers[layer] = (len(windows) + i // arrays, i % arrays)
            windows += [window] * -(-len(alike) // arrays)
        return cls(tuple(windows), tuple(layers[layer] for layer in range(spec.num_layers)))

    @property
    def arrays(self) -> int:
        """Layers that a page spans."""
        return 1 + max(place for _, place in self.layers)

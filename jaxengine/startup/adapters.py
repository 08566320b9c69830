"""Which adapters an engine serves from the start, and for how many and how large ones it keeps room."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxengine.architecture.adaptation import AdapterReader, AdapterShapes, AdapterWeights
from jaxengine.engine.adapter_registry import AdapterRegistry
from jaxengine.ops.adapters import AdapterStack
from jaxengine.options.adapters import NamedAdapter
from jaxengine.options.table import EngineOptions
from jaxengine.request.interface import AdapterRefused

SLOTS, RANK = 8, 16


@dataclass(frozen=True)
class AdapterSetup:
    """
    reader: of the model's adapters.
    shapes: None where no request may name one.
    named: those named at start, and what was read of them.
    """

    reader: AdapterReader | None
    shapes: AdapterShapes | None
    named: tuple[tuple[NamedAdapter, AdapterWeights], ...] = ()

    @property
    def slots(self) -> int:
        """Adapters that one step can mix."""
        return self.shapes.slots if self.shapes else 0

    @property
    def rank(self) -> int:
        """The highest that an adapter may have."""
        return self.shapes.rank if self.shapes else 0

    @classmethod
    def decide(
        cls, reader: AdapterReader | None, options: EngineOptions, named: Sequence[NamedAdapter], dtype: str
    ) -> "AdapterSetup":
        """Read the adapters `named`, and see how much room they need. A matrix that none of them changes gets room only
        if others can come later.

        Args:
            dtype: of activations.

        Raises:
            ValueError: the model cannot have adapters, or one cannot be read or is larger than options allow.
        """
        if not named and not options.enable_lora:
            return cls(reader, None)
        if reader is None or not reader.targets:
            raise ValueError(
                "this model cannot have adapters: its checkpoint has the engine's own layout, or multipliers in its "
                "weights, or no family knows it"
            )
        read = tuple((each, reader.read(each.path)) for each in named)
        highest = max((weights.rank for _, weights in read), default=0)
        rank = options.max_lora_rank or max(RANK, highest)
        for each, weights in read:
            if weights.rank > rank:
                raise ValueError(f"adapter {each.name!r} has rank {weights.rank}, more than max_lora_rank {rank}")
        slots = options.max_loras or (SLOTS if options.enable_lora else min(SLOTS, len(named)))
        changed = {name for _, weights in read for name in weights.matrices}
        targets = {name: target for name, target in reader.targets.items() if options.enable_lora or name in changed}
        lora_dtype = dtype if options.lora_dtype == "auto" else options.lora_dtype
        return cls(reader, AdapterShapes(targets, slots, rank, lora_dtype), read)

    def registry(self, model: str, stacks: Mapping[str, AdapterStack], most: int | None) -> AdapterRegistry:
        """The engine's adapters, those named at start among them.

        Args:
            model, stacks, most: as of `AdapterRegistry`.

        Raises:
            ValueError: one does not fit.
        """
        if self.shapes is None:
            return AdapterRegistry()
        registry = AdapterRegistry(self.reader, self.shapes, stacks, model=model, most=most)
        for each, weights in self.named:
            try:
                registry.load(each.name, each.path, weights=weights)
            except AdapterRefused as error:
                raise ValueError(f"adapter {each.name!r}: {error}") from error
        return registry

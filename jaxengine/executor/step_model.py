"""A model as it is compiled and launched: the functions of a step, and the arrays that each is given."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import jax
from jax import Array
from jax.sharding import Mesh

from jaxengine.architecture.drafter import DraftModel, Eagle
from jaxengine.device import DeviceTraits
from jaxengine.executor.shapes import Shapes
from jaxengine.model.adapters import abstract_adapters
from jaxengine.model.decoder import Decoder
from jaxengine.model.draft_decoder import DraftDecoder
from jaxengine.model.drafter import drafter_of
from jaxengine.model.eagle import EagleDecoder
from jaxengine.model.embedding import Head
from jaxengine.model.encoder import Encoder
from jaxengine.model.feature_decoder import FeatureDecoder
from jaxengine.model.linear import ADAPTERS
from jaxengine.model.traced import TracedDecoder
from jaxengine.model.vision.encoder import VisionEncoder
from jaxengine.model.vision.picture_reader import PictureReader
from jaxengine.ops import Ops
from jaxengine.step.draft_functions import Draft
from jaxengine.step.functions import Adapters, Backbone, Encode
from jaxengine.step.see import See


@dataclass(frozen=True)
class Leaves:
    """The arrays of a module, which a launch is given in its place: JAX flattens a list in C++, and an `nnx.Module` in
    Python, node by node and in each call (0.4 us and 9 for a `Head`, JAX 0.10.2).
    """

    arrays: list[Array]
    structure: Any

    @classmethod
    def of(cls, module: Any) -> Self:
        return cls(*jax.tree.flatten(module))

    def given_to(self, function: Callable[..., Any], *constants: Any) -> "OfArrays":
        """`function` of `constants`, the module and more arguments, as a function of the arrays and these."""
        return OfArrays(function, constants, self.structure)


@dataclass(frozen=True)
class OfArrays:
    """See `Leaves.given_to`. Equal ones compute the same, so they need be compiled only once."""

    function: Callable[..., Any]
    constants: tuple[Any, ...]
    structure: Any

    @property
    def __name__(self) -> str:
        """The program's, in traces."""
        return self.function.__name__

    def __call__(self, arrays: list[Array], *others: Any) -> Any:
        return self.function(*self.constants, self.structure.unflatten(arrays), *others)


@dataclass(frozen=True)
class StepModel:
    """The parts of one model. Without an encoder `encode` is None and has no leaves.

    backbones, leaves: of steps without adapters and of those with, by that.
    adapters: the abstract stacks that those with adapters take besides.
    drafter: heads that draft, if that is what drafts.
    draft: likewise a model that does or EAGLE's layers, with its leaves.
    see: the tower, of a model that sees, with its leaves.
    """

    backbones: dict[bool, Backbone]
    leaves: dict[bool, list[Array]]
    head: Leaves
    encode: Encode | None
    encoder_leaves: list[Array]
    adapters: Adapters
    drafter: Leaves | None
    draft: Draft | None
    draft_leaves: list[Array]
    see: See | None = None
    tower_leaves: list[Array] = field(default_factory=list)

    @classmethod
    def build(
        cls, shapes: Shapes, parameters: dict[str, Any], mesh: Mesh, device: DeviceTraits, attention: str
    ) -> Self:
        """`parameters` are arrays, or their abstract shapes, by the names of `parameter_table` and, where there is a
        drafter, of its own; `attention` names the back end.
        """
        spec, page_size, ops = shapes.spec, shapes.page_size, Ops(attention, mesh)
        stacks = abstract_adapters(spec, shapes.adapters, mesh, device)
        adaptable = {**parameters, **{f"{name}{ADAPTERS}": stack for name, stack in stacks.items()}}

        def backbone(parameters: dict[str, Any]) -> tuple[Backbone, list[Array]]:
            if spec.traced:
                return Backbone.of(TracedDecoder(spec, parameters, ops), page_size)
            decoder = Decoder(spec, parameters, device, ops)
            if isinstance(shapes.drafter, Eagle):
                return Backbone.of(FeatureDecoder(decoder, shapes.drafter, parameters), page_size)
            return Backbone.of(decoder, page_size)

        made = {False: backbone(parameters)} | ({True: backbone(adaptable)} if stacks else {})
        encode: Encode | None = None
        encoder_leaves: list[Array] = []
        if spec.encoder:
            encode, encoder_leaves = Encode.of(Encoder(spec, adaptable, device, ops), page_size)
        backbones = {key: backbone for key, (backbone, _) in made.items()}
        leaves = {key: leaves for key, (_, leaves) in made.items()}
        head = Head(spec, parameters.get)
        drafter: Leaves | None = None
        draft: Draft | None = None
        draft_leaves: list[Array] = []
        if isinstance(shapes.drafter, DraftModel):
            draft_model = DraftDecoder(shapes.drafter, spec.tokens, parameters, device, ops)
            draft, draft_leaves = Draft.of(draft_model, page_size)
        elif isinstance(shapes.drafter, Eagle):
            eagle = EagleDecoder(shapes.drafter, spec, parameters, device, ops, head)
            draft, draft_leaves = Draft.of(eagle, page_size)
        elif shapes.drafter:
            drafter = Leaves.of(drafter_of(shapes.drafter, spec, parameters.get, head))
        see: See | None = None
        tower_leaves: list[Array] = []
        if spec.vision:
            kind = PictureReader if spec.vision.cross else VisionEncoder
            see, tower_leaves = See.of(kind(spec, parameters, device, ops), page_size)
        seen = see, tower_leaves
        ends = Leaves.of(head), encode, encoder_leaves
        return cls(backbones, leaves, *ends, stacks, drafter, draft, draft_leaves, *seen)

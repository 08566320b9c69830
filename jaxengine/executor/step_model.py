"""A model as it is compiled and launched: the functions of a step, and the arrays that each is given."""

from dataclasses import dataclass
from typing import Any, Self

from jax import Array
from jax.sharding import Mesh

from jaxengine.device import DeviceTraits
from jaxengine.executor.shapes import Shapes
from jaxengine.model.decoder import Decoder
from jaxengine.model.embedding import Head
from jaxengine.model.encoder import Encoder
from jaxengine.model.traced import TracedDecoder
from jaxengine.ops import Ops
from jaxengine.step.functions import Backbone, Encode


@dataclass(frozen=True)
class StepModel:
    """The parts of one model. Without an encoder `encode` is None and has no leaves."""

    backbone: Backbone
    leaves: list[Array]
    head: Head
    encode: Encode | None
    encoder_leaves: list[Array]

    @classmethod
    def build(
        cls, shapes: Shapes, parameters: dict[str, Any], mesh: Mesh, device: DeviceTraits, attention: str
    ) -> Self:
        """`parameters` are arrays, or their abstract shapes, by the names of `parameter_table`; `attention` names the
        back end.
        """
        spec, page_size, ops = shapes.spec, shapes.page_size, Ops(attention, mesh)
        decoder: Decoder | TracedDecoder
        decoder = TracedDecoder(spec, parameters, ops) if spec.traced else Decoder(spec, parameters, device, ops)
        backbone, leaves = Backbone.of(decoder, page_size)
        encode: Encode | None = None
        encoder_leaves: list[Array] = []
        if spec.encoder:
            encode, encoder_leaves = Encode.of(Encoder(spec, parameters, device, ops), page_size)
        return cls(backbone, leaves, Head(spec, parameters.get), encode, encoder_leaves)

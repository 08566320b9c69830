"""What a model is, as data: the one description that converters write and the engine reads.

`ModelSpec` says how the decoder computes, `parameters` with which arrays. Nothing here imports JAX, so converters and
the scheduler can read it. `convert/families` maps each family of checkpoints onto a `ModelSpec`. This file and
`switches`, which it re-exports, know no checkpoint format and no tensor name of another library.
"""

import dataclasses
import json
import re
import types
import typing
from dataclasses import dataclass, field, replace
from typing import Any

from jaxengine.architecture.latent import Latent
from jaxengine.architecture.model_checks import check_model
from jaxengine.architecture.recurrence import Kept, LinearAttention, Mamba2, Recurrence, ShortConvolution
from jaxengine.architecture.switches import (
    Activation,
    Attention,
    Beside,
    Block,
    ClampedGate,
    Cross,
    Embedding,
    Encoder,
    Experts,
    Head,
    LayerKind,
    Norm,
    NormKind,
    QKNorm,
    QueryScale,
    RelativePositions,
    Rope,
    RopeAxes,
    RopeKind,
    Routing,
    StateSpace,
    Traced,
    TracedArray,
)
from jaxengine.architecture.vision import Vision

__all__ = [
    "Activation",
    "Attention",
    "Beside",
    "Block",
    "ClampedGate",
    "Cross",
    "Embedding",
    "Encoder",
    "Experts",
    "Head",
    "Latent",
    "LayerKind",
    "LinearAttention",
    "Mamba2",
    "ModelSpec",
    "Norm",
    "NormKind",
    "QKNorm",
    "QueryScale",
    "RelativePositions",
    "Rope",
    "RopeAxes",
    "RopeKind",
    "Routing",
    "ShortConvolution",
    "StateSpace",
    "Traced",
    "TracedArray",
    "Vision",
]


@dataclass(frozen=True)
class ModelSpec:
    """A transformer decoder, with or without an encoder, or a stack of state spaces.

    In a state space the sizes of attention and MLP are 0. In a `traced` model only sizes and head have a meaning.
    Layer i is of kind `kinds[i % len(kinds)]`. `residual_scale` multiplies what a branch adds to the residual stream.
    With `layer_scale` each branch also has learned factors of it (Touvron et al. 2021, arXiv 2103.17239).
    With `output_scale` what leaves a layer is multiplied by a learned number.
    `clamped_gate` stands in for `activation` in a gated MLP. `gate_scale` multiplies what is activated, and `mlp_scale`
    what an MLP adds; of experts neither.
    `cache_scales` holds each layer's scale of keys and scale of values: a cache of 8 bits holds keys and values divided
    by them; () = not known.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    max_positions: int
    norm: Norm = field(default_factory=Norm)
    block: Block = "sequential"
    kinds: tuple[LayerKind, ...] = field(default_factory=lambda: (LayerKind(),))
    attention: Attention = field(default_factory=Attention)
    activation: Activation = "silu"
    gated: bool = True
    gate_scale: float = 1.0
    clamped_gate: ClampedGate | None = None
    experts: Experts | None = None
    state_space: StateSpace | None = None
    linear_attention: LinearAttention | None = None
    mamba2: Mamba2 | None = None
    short_convolution: ShortConvolution | None = None
    beside: Beside = field(default_factory=Beside)
    traced: Traced | None = None
    embedding: Embedding = field(default_factory=Embedding)
    head: Head = field(default_factory=Head)
    final_norm: bool = True
    residual_scale: float = 1.0
    mlp_scale: float = 1.0
    layer_scale: bool = False
    output_scale: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    encoder: Encoder | None = None
    vision: Vision | None = None
    cache_scales: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        check_model(self)

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // max(1, self.num_kv_heads)

    @property
    def tokens(self) -> int:
        """How many ids are tokens; the vocabulary's other rows are padding."""
        return self.head.tokens or self.vocab_size

    @property
    def predicts_prompt(self) -> bool:
        """Whether it has logits of a prompt's tokens: there is a head, and no encoder reads the prompt in its place."""
        return self.encoder is None and not self.head.missing

    @property
    def cross_layers(self) -> tuple[int, ...]:
        """The layers that attend to pictures, and keep nothing of the text."""
        if all(kind.cross is None for kind in self.kinds):
            return ()
        return tuple(layer for layer in range(self.num_layers) if self.kind(layer).cross is not None)

    @property
    def recurrence(self) -> Recurrence | None:
        """What layers that keep states have in the place of attention."""
        return self.linear_attention or self.mamba2 or self.short_convolution

    @property
    def kept(self) -> tuple[Kept, ...]:
        """What each of these layers keeps of a sequence."""
        return self.recurrence.kept if self.recurrence is not None and self.recurrent_layers else ()

    @property
    def recurrent_layers(self) -> tuple[int, ...]:
        """The layers that keep states of a sequence."""
        if not any(kind.recurrent for kind in self.kinds):
            return ()
        return tuple(layer for layer in range(self.num_layers) if self.kind(layer).recurrent)

    @property
    def keeps_states(self) -> bool:
        """Whether any layer does: then no token can be taken back, and a prefix ends only where states were copied."""
        return self.state_space is not None or any(kind.recurrent for kind in self.kinds)

    @property
    def own_layers(self) -> tuple[int, ...]:
        """The layers that keep keys and values of the text."""
        kinds = enumerate(map(self.kind, range(self.num_layers)))
        return tuple(i for i, kind in kinds if kind.attends and kind.cross is None and kind.reads is None)

    @property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """The sizes of heads in all kinds of layers: key/value heads and head_dim."""
        sizes = ((kind.kv_heads or self.num_kv_heads, kind.head_dim or self.head_dim) for kind in self.kinds)
        return tuple(dict.fromkeys(sizes))

    def sized(self, kind: LayerKind) -> "ModelSpec":
        """The same with the sizes that layers of `kind` have; what else its layers are does not count."""
        if not (kind.kv_heads or kind.head_dim or kind.ffn_size):
            return self
        return replace(
            self,
            kinds=(LayerKind(None),),
            num_kv_heads=kind.kv_heads or self.num_kv_heads,
            head_dim=kind.head_dim or self.head_dim,
            ffn_size=kind.ffn_size or self.ffn_size,
        )

    def sized_for(self, parameter: str) -> "ModelSpec":
        """The same for the layer that has `parameter`; itself for a parameter of no layer."""
        layer = re.match(r"layers\.(\d+)\.", parameter)
        return self.sized(self.kind(int(layer[1]))) if layer else self

    @property
    def embedding_width(self) -> int:
        return self.embedding.width or self.hidden_size

    @property
    def by_position(self) -> bool:
        """Whether a token's keys and values depend only on the tokens up to it, so that prompts can share a prefix.

        A state depends on them only too. But a state space has nothing else, and keeps just the last.
        """
        if self.encoder is not None or self.state_space is not None:
            return False
        return all(kind.rope is None or kind.rope.by_position for kind in self.kinds)

    @property
    def encoder_spec(self) -> "ModelSpec":
        """The encoder as a model of its own; it reads the same embedding and has no head."""
        assert self.encoder is not None
        relative = self.attention.relative and replace(self.attention.relative, both_ways=True)
        return replace(
            self,
            num_layers=self.encoder.num_layers,
            attention=replace(self.attention, relative=relative),
            head=Head(tied=True),
            encoder=None,
            cache_scales=(),
        )

    @property
    def tower_spec(self) -> "ModelSpec":
        """The layers of the vision tower, as those of a model without embedding and head."""
        assert self.vision is not None
        tower = self.vision.tower
        same = ("hidden_size", "num_layers", "num_heads", "head_dim", "ffn_size", "norm", "activation", "gated")
        more = ("qkv_bias", "out_bias", "mlp_bias", "layer_scale")
        return ModelSpec(
            vocab_size=1,
            max_positions=1,
            num_kv_heads=tower.num_heads,
            kinds=(LayerKind(tower.rope),),
            attention=Attention(qk_norm=tower.qk_norm),
            **{name: getattr(tower, name) for name in (*same, *more)},
        )

    @property
    def global_spec(self) -> "ModelSpec":
        """The layers of a tower in which all tiles of a picture see each other once more, likewise."""
        assert self.vision is not None
        return replace(
            self.tower_spec, num_layers=self.vision.tower.global_layers, kinds=(LayerKind(None, gates="number"),)
        )

    @property
    def resampler_spec(self) -> "ModelSpec":
        """The layers of the resampler, likewise."""
        assert self.vision is not None and self.vision.resampler is not None
        own = self.vision.resampler
        same = ("num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "norm", "activation", "gated")
        return ModelSpec(
            vocab_size=1,
            max_positions=1,
            hidden_size=self.vision.row_size(self.hidden_size),
            kinds=(LayerKind(),),
            attention=Attention(qk_norm=own.qk_norm),
            **{name: getattr(own, name) for name in same},
        )

    @property
    def rope_switch_length(self) -> int:
        """The length beyond which the keys of a whole text change and must be computed again; 0 = there is none."""
        ropes = (kind.rope for kind in self.kinds if kind.rope is not None and kind.rope.kind == "longrope")
        return max((rope.original_positions for rope in ropes), default=0)

    def kind(self, layer: int) -> LayerKind:
        return self.kinds[layer % len(self.kinds)]

    def block_of(self, kind: LayerKind) -> Block:
        return kind.block or self.block

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "ModelSpec":
        """Raises ValueError, TypeError or KeyError where `text` is not what `to_json` writes."""
        return _decode(cls, json.loads(text))  # type: ignore[no-any-return]


def _decode(annotation: Any, value: Any) -> Any:
    """JSON back to frozen dataclasses and tuples, by their type annotations."""
    if dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation)
        return annotation(**{name: _decode(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return tuple(_decode(arguments[0], item) for item in value)
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return None if value is None else _decode(arguments[0], value)
    return value

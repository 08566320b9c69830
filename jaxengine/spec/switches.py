"""The switches of the decoder: every way in which one decoder-only family computes differently from another.

Small frozen values that a `ModelSpec` is made of. They are compared, hashed and written as JSON; what they mean is in
the module that computes with them. Nothing here imports JAX.
"""

from dataclasses import dataclass, field
from typing import Literal

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
NormKind = Literal["rms", "rms_plus_one", "layer"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
Routing = Literal["softmax", "sparse_mixer"]

# Where a layer normalises (n, and p where there are two) around its branches f, attention and MLP:
#   sequential      x + f(n(x)), one branch after the other
#   sandwich        x + p(f(n(x)))
#   branch_norm     x + n(f(x))
#   post_norm       n(x + f(x))
#   parallel        x + attention(n(x)) + mlp(n(x)), with one norm
#   parallel_norms  the same with two
Block = Literal["sequential", "sandwich", "branch_norm", "post_norm", "parallel", "parallel_norms"]


@dataclass(frozen=True)
class Norm:
    """`rms_plus_one` multiplies by 1 + weight. A norm may come without weight, and without bias."""

    kind: NormKind = "rms"
    eps: float = 1e-5
    weight: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        if self.eps < 0:
            raise ValueError(f"norm eps must not be negative, got {self.eps}")


@dataclass(frozen=True)
class QKNorm:
    """Of queries and keys before rotation: each head by itself, or all heads of a token together."""

    kind: NormKind = "rms"
    over: Literal["head", "projection"] = "head"
    bias: bool = False


@dataclass(frozen=True)
class Rope:
    """Rotary positions, rotate-half pairing. The formulas of each kind are in `jaxengine/model/rope.py`."""

    kind: RopeKind = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_positions: int = 0  # trained length: dynamic, llama3, yarn, longrope
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: round the ramp's ends to whole dimensions
    attention_factor: float | None = None  # yarn, longrope: multiplies cos and sin; None = derived from factor
    short_attention_factor: float | None = None  # longrope: likewise up to the trained length; None = the same
    mscale: float = 0.0  # yarn
    mscale_all_dim: float = 0.0  # yarn
    short_factors: tuple[float, ...] = ()  # longrope: divisors of each frequency up to the trained length
    long_factors: tuple[float, ...] = ()  # longrope: and beyond it
    dim: int = 0  # how many of a head's first dimensions rotate; 0 = all

    def __post_init__(self) -> None:
        if self.theta <= 0 or self.factor <= 0:
            raise ValueError(f"rope theta and factor must be positive, got {self.theta} and {self.factor}")
        if self.kind in ("dynamic", "llama3", "yarn", "longrope") and self.original_positions <= 0:
            raise ValueError(f"rope kind {self.kind!r} needs original_positions")
        if self.dim < 0 or self.dim % 2:
            raise ValueError(f"rope dim {self.dim} must be even and not negative")

    @property
    def by_position(self) -> bool:
        """Whether a token's angles depend on its position alone, or on the length of the prompt too."""
        return self.kind not in ("dynamic", "longrope")


@dataclass(frozen=True)
class LayerKind:
    """What may differ from layer to layer. Layers of one kind are traced once, so there should be few."""

    rope: Rope | None = field(default_factory=Rope)
    window: int = 0  # keys that a query sees, its own included; 0 = all
    scale: float | None = None  # of query · key; None = head_dim ** -0.5
    experts: bool = False  # the MLP is `ModelSpec.experts`

    def __post_init__(self) -> None:
        if self.window < 0:
            raise ValueError(f"window must not be negative, got {self.window}")


@dataclass(frozen=True)
class RelativePositions:
    """T5's (Raffel et al. 2019, arXiv 1910.10683): a learned number per head and bucket of distances.

    Half of the buckets are one distance each, the others grow to `max_distance`, beyond which all is the last bucket.
    both_ways: keys may lie behind the query too, and have buckets of their own, half of them.
    by_layer: each layer has numbers of its own.
    """

    buckets: int
    max_distance: int
    both_ways: bool = False
    by_layer: bool = False

    def __post_init__(self) -> None:
        if self.buckets < 4 or self.buckets % 4:
            raise ValueError(f"relative buckets must be a multiple of 4, got {self.buckets}")
        if self.max_distance <= self.buckets // 2:
            raise ValueError(f"relative max_distance {self.max_distance} must be more than {self.buckets // 2}")


@dataclass(frozen=True)
class Attention:
    """What all layers' attention shares.

    alibi: one slope per query head; score(i, j) gets slope x j, after scaling. Empty = none.
    alibi_rounded: Falcon's: the product is rounded to bf16, and scaled as scores are.
    softcap: scores become softcap x tanh(score / softcap), before ALiBi and mask; 0 = none.
    clip: queries, keys and values are clamped to [-clip, clip] as they are projected; 0 = none.
    relative: what is added to scores by distance.
    """

    qk_norm: QKNorm | None = None
    alibi: tuple[float, ...] = ()
    alibi_rounded: bool = False
    softcap: float = 0.0
    clip: float = 0.0
    relative: RelativePositions | None = None


@dataclass(frozen=True)
class Experts:
    """A mixture of `count` MLPs, `used` of them for each token, of width `ffn_size`.

    routing: softmax over all experts, or PhiMoE's sparse mixer, which softmaxes what is near each choice.
    renormalise: the weights of the chosen are divided by their sum.
    shared_ffn_size: width of an MLP that every token also passes, times a sigmoid of its own gate; 0 = none.
    jitter: how near, for the sparse mixer.
    """

    count: int
    used: int
    ffn_size: int
    routing: Routing = "softmax"
    renormalise: bool = False
    shared_ffn_size: int = 0
    jitter: float = 0.01

    def __post_init__(self) -> None:
        if not 1 <= self.used <= self.count:
            raise ValueError(f"{self.used} experts used of {self.count}")
        if self.routing == "sparse_mixer" and self.used != 2:
            raise ValueError(f"the sparse mixer chooses 2 experts, not {self.used}")
        if self.ffn_size < 1 or self.shared_ffn_size < 0:
            raise ValueError(f"expert sizes {self.ffn_size} and {self.shared_ffn_size} must be positive")


@dataclass(frozen=True)
class StateSpace:
    """A selective state space (Mamba: Gu & Dao 2023, arXiv 2312.00752) in the place of attention and MLP.

    channels: width inside; each channel is convolved over `kernel` tokens and keeps `size` states.
    rank: of the projection that gives each channel its time step.
    eps: of the norm without weight over time steps, B and C (Falcon-Mamba); None = they are not normalised.
    wide_residual: the residual stream is f32, whatever the weights are.
    bias, conv_bias: of the projections in and out, and of the convolution.
    """

    channels: int
    size: int
    rank: int
    kernel: int = 4
    eps: float | None = None
    wide_residual: bool = True
    bias: bool = False
    conv_bias: bool = True

    def __post_init__(self) -> None:
        for name, least in (("channels", 1), ("size", 1), ("rank", 1), ("kernel", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"state space {name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True)
class TracedArray:
    """A parameter or saved buffer of a traced module."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Traced:
    """A model of transformers, as its own module computes it: `jaxengine/model/traced.py`.

    config: transformers' configuration, as JSON.
    embedding: which of the module's parameters it is.
    arrays: the module's others, but for those of its head.
    """

    config: str
    embedding: str
    arrays: tuple[TracedArray, ...]


@dataclass(frozen=True)
class Embedding:
    """Rows of `width` (0 = hidden_size), scaled, projected to hidden_size, plus learned positions, normalised."""

    width: int = 0
    scale: float = 1.0
    positions: bool = False
    norm: bool = False


@dataclass(frozen=True)
class Head:
    """Hidden states to logits: softcap(scale x (head · hidden + bias)). A tied head is the embedding.

    tokens: ids that a token has; the rows from there on are padding and never sampled; 0 = all have.
    """

    tied: bool = False
    bias: bool = False
    scale: float = 1.0
    softcap: float = 0.0
    tokens: int = 0


@dataclass(frozen=True)
class Encoder:
    """In front of the decoder: `num_layers` as the decoder's, whose tokens all see each other.

    The decoder's layers attend to its output, between their attention and their MLP, and start from `start_token`.
    """

    num_layers: int
    start_token: int

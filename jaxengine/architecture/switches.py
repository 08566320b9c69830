"""The switches of the decoder: every way in which one decoder-only family computes differently from another.

A `ModelSpec` is made of these small frozen values. They are compared, hashed and written as JSON. The module that
computes with a value documents what it means. Nothing here imports JAX.
"""

from dataclasses import dataclass, field
from typing import Literal

from jaxengine.architecture.latent import Latent

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"]
NormKind = Literal["rms", "rms_plus_one", "layer"]
# Which frequency of a rope turns by which axis of a token's position (time, row, column):
#   runs         the first n_t by time, the next n_h by row, the last n_w by column (Qwen2-VL)
#   interleaved  by column, row and time in turn: frequency i by row if i % 3 = 1 and i < 3·n_h, by column if i % 3 = 2
#                and i < 3·n_w, else by time (Qwen3-VL)
#   own          in runs, but each axis has the frequencies that a head of 2·n dimensions would have (Qwen's towers)
#   alternating  the even frequencies by row, then the odd ones by column (Pixtral's tower)
RopeAxes = Literal["runs", "interleaved", "own", "alternating"]
Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"]
Routing = Literal["softmax", "sigmoid", "sparse_mixer"]
Gates = Literal["none", "number", "vector"]
# What lets tokens read others in a layer: attention, `ModelSpec.recurrence`, the sum of what each makes, or nothing.
Mixer = Literal["attention", "recurrence", "both", "none"]

# Where a layer normalises around each branch f, attention or MLP; n is its norm, and p its second norm if it has two:
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
    """The norm of queries and keys before rotation: of each head by itself, or of all heads of a token together."""

    kind: NormKind = "rms"
    over: Literal["head", "projection"] = "head"
    bias: bool = False


@dataclass(frozen=True)
class Rope:
    """Rotary positions, rotate-half pairing. The formulas of each kind are in `jaxengine/model/rope.py`.

    axes: how many of the dim/2 frequencies turn by a token's time, row and column (`StepBatch.rope_position`), laid out
    as `layout` says; None = a token has one position.
    """

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
    short_attention_factor: float | None = None  # longrope: the same factor up to the trained length; None = equal
    mscale: float = 0.0  # yarn
    mscale_all_dim: float = 0.0  # yarn
    short_factors: tuple[float, ...] = ()  # longrope: divisors of each frequency up to the trained length
    long_factors: tuple[float, ...] = ()  # longrope: divisors beyond the trained length
    dim: int = 0  # how many of a head's first dimensions rotate; 0 = all
    turning: int = 0  # proportional: how many of the dim/2 pairs turn, the fastest; the others stand still
    axes: tuple[int, int, int] | None = None
    layout: RopeAxes = "runs"

    def __post_init__(self) -> None:
        if self.theta <= 0 or self.factor <= 0:
            raise ValueError(f"rope theta and factor must be positive, got {self.theta} and {self.factor}")
        if self.kind in ("dynamic", "llama3", "yarn", "longrope") and self.original_positions <= 0:
            raise ValueError(f"rope kind {self.kind!r} needs original_positions")
        if self.dim < 0 or self.dim % 2:
            raise ValueError(f"rope dim {self.dim} must be even and not negative")
        if self.kind == "proportional" and self.turning < 1:
            raise ValueError(f"rope kind 'proportional' turns at least one pair, got {self.turning}")
        if self.axes is not None and (len(self.axes) != 3 or min(self.axes) < 0):
            raise ValueError(f"rope axes must be three numbers of pairs, got {self.axes}")

    @property
    def by_position(self) -> bool:
        """Whether a token's angles depend on its position alone, or on the length of the prompt too."""
        return self.kind not in ("dynamic", "longrope")


@dataclass(frozen=True)
class Cross:
    """How a layer attends to pictures, and not to the text.

    width: of the rows that its keys and values are made of; 0 = hidden_size.
    norm: queries and keys are normalised, head by head.
    blind_mlp: tokens that see no picture go through its MLP too; else the layer adds nothing to them.
    """

    width: int = 0
    norm: bool = True
    blind_mlp: bool = False

    def __post_init__(self) -> None:
        if self.width < 0:
            raise ValueError(f"the width of what a layer attends to must not be negative, got {self.width}")


@dataclass(frozen=True)
class LayerKind:
    """What may differ from layer to layer. Layers of one kind are traced once, so there should be few.

    kv_heads, head_dim, ffn_size: 0 = the model's. The number of query heads is the same in all layers.
    reads: the number of an earlier layer, whose keys and values this one attends to; it makes none of its own.
    """

    rope: Rope | None = field(default_factory=Rope)
    window: int = 0  # keys that a query sees, its own included; 0 = all
    scale: float | None = None  # of query · key; None = head_dim ** -0.5
    experts: bool = False  # the MLP is `ModelSpec.experts`
    cross: Cross | None = None
    gates: Gates = "none"  # what each branch adds is multiplied by the tanh of a learned number, or of one per feature
    mixer: Mixer = "attention"
    feed_forward: bool = True  # it has an MLP, or experts
    block: Block | None = None  # None = the model's
    kv_heads: int = 0
    head_dim: int = 0
    ffn_size: int = 0
    reads: int | None = None

    def __post_init__(self) -> None:
        if self.window < 0:
            raise ValueError(f"window must not be negative, got {self.window}")
        if min(self.kv_heads, self.head_dim, self.ffn_size) < 0:
            raise ValueError(f"sizes of a layer must not be negative, got {self}")
        if self.reads is not None and self.cross is not None:
            raise ValueError("a layer attends to pictures or to the keys and values of another, not to both")
        if self.cross is not None and (self.window or self.rope is not None):
            raise ValueError("a layer that attends to pictures has neither window nor rope")
        if not self.attends and (self.window or self.rope is not None or self.cross is not None):
            raise ValueError("a layer without attention has no window and no rope, and attends to no pictures")
        if self.recurrent and self.cross is not None:
            raise ValueError("a layer that keeps states attends to no pictures")
        if self.mixer == "none" and not self.feed_forward:
            raise ValueError("a layer has attention, states or an MLP")

    @property
    def attends(self) -> bool:
        return self.mixer in ("attention", "both")

    @property
    def recurrent(self) -> bool:
        return self.mixer in ("recurrence", "both")


@dataclass(frozen=True)
class Beside:
    """What is multiplied in layers whose mixer is both: what attention reads and makes, and the recurrence likewise."""

    attention_in: float = 1.0
    attention_out: float = 1.0
    recurrence_in: float = 1.0
    recurrence_out: float = 1.0


@dataclass(frozen=True)
class RelativePositions:
    """T5's relative positions (Raffel et al. 2019, arXiv 1910.10683): a learned bias per head and bucket of distances.

    Half of the buckets hold one distance each. The others grow wider up to `max_distance`; all larger distances are in
    the last one.
    both_ways: keys may also follow the query; half of the buckets are theirs.
    by_layer: each layer has its own biases.
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
class ClampedGate:
    """gpt-oss' gated activation: (u + 1) · g · sigmoid(alpha · g), of a gate g of at most `limit` and the other product
    u between -limit and limit.
    """

    limit: float = 7.0
    alpha: float = 1.702

    def __post_init__(self) -> None:
        if self.limit <= 0:
            raise ValueError(f"the limit of a clamped gate must be positive, got {self.limit}")


@dataclass(frozen=True)
class QueryScale:
    """Llama 4's factor of queries, for long texts: 1 + beta · ln(1 + ⌊position / length⌋)."""

    beta: float
    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"the length of a query scale must be at least 1, got {self.length}")


@dataclass(frozen=True)
class Attention:
    """What the attention of all layers has in common.

    alibi: one slope per query head; slope x (j - i) is added to score(i, j) after scaling. Empty = none.
    alibi_rounded: as in Falcon, slope x j is rounded to bf16 and scaled like the scores.
    softcap: scores become softcap x tanh(score / softcap), before ALiBi and mask; 0 = none.
    clip: the projection's queries, keys and values are clamped to [-clip, clip]; 0 = none.
    relative: the bias added to scores by distance.
    query_scale: multiplies queries by their position.
    sinks: each query head has a learned logit beside its scores, which takes weight and has no value.
    output_gate: what each head makes is multiplied by the sigmoid of a further product, one number for each dimension.
    value_norm: values are normalised, head by head, to a mean square of 1; the norm has no weight.
    latent: keys and values are made of a latent; there is one key/value head.
    """

    qk_norm: QKNorm | None = None
    alibi: tuple[float, ...] = ()
    alibi_rounded: bool = False
    softcap: float = 0.0
    clip: float = 0.0
    relative: RelativePositions | None = None
    query_scale: QueryScale | None = None
    sinks: bool = False
    output_gate: bool = False
    value_norm: bool = False
    latent: Latent | None = None


@dataclass(frozen=True)
class Experts:
    """A mixture of `count` MLPs, `used` of them for each token, of width `ffn_size`.

    routing: the scores of which the highest are chosen, and are the weights: a softmax over all experts, a sigmoid of
        each, or PhiMoE's sparse mixer, a softmax over the experts near each choice.
    renormalise: the weights of the chosen experts are divided by their sum.
    scale: multiplies the weights.
    choice_bias: a learned number for each expert is added to its score for the choice alone (Wang et al. 2024, arXiv
        2408.15664).
    groups, used_groups: experts lie in groups of as many, and are chosen of those groups alone whose `judges` best
        scores have the largest sums (DeepSeek-AI 2024, arXiv 2412.19437; of one, arXiv 2405.04434).
    shared_ffn_size: width of an MLP for every token; 0 = none.
    shared_gate: its output is multiplied by the sigmoid of its gate.
    jitter: how near an expert is to a choice, for the sparse mixer.
    bias: the router and every product of an expert have one.
    learned_scale: a learned number for each expert multiplies its weight.
    beside: they stand beside the layer's MLP, as in Gemma 4, see `ExpertsBeside` of `jaxengine/model/moe.py`.
    norm: what the experts of a token make, the one for every token among them, is normalised.
    """

    count: int
    used: int
    ffn_size: int
    routing: Routing = "softmax"
    renormalise: bool = False
    shared_ffn_size: int = 0
    shared_gate: bool = True
    jitter: float = 0.01
    bias: bool = False
    scale: float = 1.0
    choice_bias: bool = False
    groups: int = 1
    used_groups: int = 1
    learned_scale: bool = False
    beside: bool = False
    judges: int = 2
    norm: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.used <= self.count:
            raise ValueError(f"{self.used} experts used of {self.count}")
        if not 1 <= self.used_groups <= self.groups or self.count % self.groups:
            raise ValueError(f"{self.used_groups} groups used of {self.groups} for {self.count} experts")
        size = self.count // self.groups
        if self.groups > 1 and self.used > self.used_groups * size:
            raise ValueError(f"{self.used} experts used of {self.used_groups} groups of {size}")
        if self.groups > 1 and not 1 <= self.judges <= size:
            raise ValueError(f"{self.judges} scores judge groups of {size} experts")
        if self.routing == "sparse_mixer" and self.used != 2:
            raise ValueError(f"the sparse mixer chooses 2 experts, not {self.used}")
        if self.ffn_size < 1 or self.shared_ffn_size < 0:
            raise ValueError(f"expert sizes {self.ffn_size} and {self.shared_ffn_size} must be positive")


@dataclass(frozen=True)
class StateSpace:
    """A selective state space (Mamba: Gu & Dao 2023, arXiv 2312.00752) instead of attention and MLP.

    channels: the inner width; each channel is convolved over `kernel` tokens and keeps `size` states.
    rank: the rank of the projection that makes each channel's time step.
    eps: the epsilon of the norm without weights over time steps, B and C (Falcon-Mamba); None = no norm.
    wide_residual: the residual stream is f32, whatever the type of the weights.
    bias, conv_bias: whether the projections in and out have one, and the convolution.
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
    """A model that transformers' own module computes, see `jaxengine/model/traced.py`.

    config: transformers' configuration, as JSON.
    embedding: the name of the module's parameter that is the embedding.
    arrays: the module's other parameters and buffers, without those of its head.
    """

    config: str
    embedding: str
    arrays: tuple[TracedArray, ...]


@dataclass(frozen=True)
class Embedding:
    """Rows of `width` (0 = hidden_size), scaled, projected to hidden_size, plus learned positions, normalised.

    layer_width: of the row that each layer also reads for each token, see `jaxengine/model/layer_inputs.py`; 0 = none.
    """

    width: int = 0
    scale: float = 1.0
    positions: bool = False
    norm: bool = False
    layer_width: int = 0


@dataclass(frozen=True)
class Head:
    """Hidden states to logits: softcap(scale x (head · hidden + bias)). A tied head is the embedding.

    tokens: how many ids are tokens; the rows behind them are padding and never sampled; 0 = all are.
    missing: the checkpoint has none, so hidden states are all that it is for. It is tied, and its logits mean nothing.
    """

    tied: bool = False
    bias: bool = False
    scale: float = 1.0
    softcap: float = 0.0
    tokens: int = 0
    missing: bool = False


@dataclass(frozen=True)
class Encoder:
    """An encoder in front of the decoder: `num_layers` layers like the decoder's, in which all tokens see each other.

    Each layer of the decoder attends to its output between attention and MLP. An answer begins with `start_token`.
    """

    num_layers: int
    start_token: int

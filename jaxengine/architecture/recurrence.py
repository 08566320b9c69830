"""What stands in the place of attention in layers that keep states of a fixed size. Nothing here imports JAX."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

# How what heads make, y, is normalised beside its gate z, by group of heads: n(y · silu(z)), n(y) · silu(z), or
# y · silu(z) alone.
GatedNorm = Literal["gate_first", "norm_first", "none"]


class Kept(NamedTuple):
    """An array of what a layer keeps of a sequence; `axes` names its dimensions, as in `Parameter`.

    states: it is f32; else it has the type of activations.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    states: bool = False


def _check(kind: str, sizes: object, least: dict[str, int]) -> None:
    for name, at_least in least.items():
        if getattr(sizes, name) < at_least:
            raise ValueError(f"{kind}'s {name} must be at least {at_least}, got {getattr(sizes, name)}")


@dataclass(frozen=True)
class LinearAttention:
    """Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464): a matrix of states for each head, not keys and values.

    heads: of values, each with a gate, a decay and a rate of its own.
    key_heads: of queries and keys; each serves heads / key_heads value heads, one behind the other.
    key_dim, value_dim: of each head; a head keeps key_dim x value_dim states.
    kernel: over how many tokens queries, keys and values are convolved.
    most_rate: up to which rates go. From 1 on they turn states around: above it eigenvalues are negative.
    eps: of the norm of what heads make; None = that of the layers' norms.
    """

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    kernel: int = 4
    most_rate: float = 1.0
    eps: float | None = None

    def __post_init__(self) -> None:
        sizes = {"heads": 1, "key_heads": 1, "key_dim": 1, "value_dim": 1, "kernel": 2}
        _check("linear attention", self, sizes)
        if self.heads % self.key_heads:
            raise ValueError(f"linear attention's heads {self.heads} are no multiple of its key_heads {self.key_heads}")

    @property
    def group(self) -> int:
        """Value heads per key head."""
        return self.heads // self.key_heads

    @property
    def convolved(self) -> int:
        """Channels of a key head and its value heads that are convolved."""
        return 2 * self.key_dim + self.group * self.value_dim

    @property
    def width(self) -> int:
        """Numbers of a token that are convolved, or gate."""
        return self.key_heads * self.convolved + self.heads * self.value_dim

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The convolution's last inputs, and the states."""
        inputs = Kept((self.kernel - 1, self.key_heads, self.convolved), (None, "key_heads", None))
        states = (self.key_heads, self.group, self.key_dim, self.value_dim)
        return inputs, Kept(states, ("key_heads", None, None, None), states=True)


@dataclass(frozen=True)
class Mamba2:
    """Mamba 2 (Dao & Gu 2024, arXiv 2405.21060): a selective state space with one decay for each head.

    heads, head_dim: of inputs, gates and outputs.
    groups: of heads that share B and C, each heads / groups that follow each other.
    size: of B and C; a head keeps size x head_dim states.
    kernel: over how many tokens inputs, B and C are convolved.
    norm: of what the heads make, and its gate.
    least_step, most_step: what time steps are clamped to; most_step None = to no upper limit.
    bias, out_bias, conv_bias: whether the projections in and out have one, and the convolution.
    scales: of what a token's products are: gates, inputs, B, C and time steps; () = none.
    """

    heads: int
    head_dim: int
    groups: int
    size: int
    kernel: int = 4
    norm: GatedNorm = "gate_first"
    least_step: float = 0.0
    most_step: float | None = None
    bias: bool = False
    out_bias: bool = False
    conv_bias: bool = True
    scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.scales) not in (0, 5):
            raise ValueError(f"Mamba 2's scales are 5 numbers, not {len(self.scales)}")
        _check("Mamba 2", self, {"heads": 1, "head_dim": 1, "groups": 1, "size": 1, "kernel": 2})
        if self.heads % self.groups:
            raise ValueError(f"Mamba 2's heads {self.heads} are no multiple of its groups {self.groups}")
        if self.most_step is not None and not self.least_step <= self.most_step:
            raise ValueError(f"Mamba 2's time steps of {self.least_step} to {self.most_step} are none")

    @property
    def width(self) -> int:
        """Numbers of a token that are convolved, or gate."""
        return 2 * self.heads * self.head_dim + 2 * self.groups * self.size

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The convolution's last inputs, of heads and of B and C, of which each device has all; and the states."""
        inputs = Kept((self.kernel - 1, self.heads, self.head_dim), (None, "state_heads", None))
        shared = Kept((self.kernel - 1, 2, self.groups, self.size), (None, None, None, None))
        states = Kept((self.heads, self.size, self.head_dim), ("state_heads", None, None), states=True)
        return inputs, shared, states


@dataclass(frozen=True)
class ShortConvolution:
    """LFM2's gated convolution (Liquid AI 2025, arXiv 2511.23404): c · conv(b · x), of three products of a token.

    channels: of each product, convolved over `kernel` tokens.
    bias: the products, the convolution and the projection out have one.
    """

    channels: int
    kernel: int = 3
    bias: bool = False

    def __post_init__(self) -> None:
        _check("a short convolution", self, {"channels": 1, "kernel": 2})

    @property
    def width(self) -> int:
        """Numbers of a token that are convolved, or gate."""
        return 3 * self.channels

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The convolution's last inputs alone."""
        return (Kept((self.kernel - 1, self.channels), (None, "channels")),)


Recurrence = LinearAttention | Mamba2 | ShortConvolution

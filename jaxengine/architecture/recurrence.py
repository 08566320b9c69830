"""What stands in the place of attention in layers that keep states of a fixed size. Nothing here imports JAX."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LinearAttention:
    """Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464): a matrix of states for each head, not keys and values.

    heads: of values, each with a gate, a decay and a rate of its own.
    key_heads: of queries and keys; each serves heads / key_heads value heads, one behind the other.
    key_dim, value_dim: of each head; a head keeps key_dim x value_dim states.
    kernel: over how many tokens queries, keys and values are convolved.
    """

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    kernel: int = 4

    def __post_init__(self) -> None:
        for name, least in (("heads", 1), ("key_heads", 1), ("key_dim", 1), ("value_dim", 1), ("kernel", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"linear attention's {name} must be at least {least}, got {getattr(self, name)}")
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

"""The switch of multi-head latent attention. Nothing here imports JAX."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Latent:
    """Keys and values of all heads are made of one short vector per token, its latent, and a key that turns and that
    all heads share (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1). These two are all that is cached.

    rank: elements of the latent.
    plain_dim, rope_dim: elements of a head's queries and keys that are made of the latent, and that turn.
    value_dim: of a head's values.
    query_rank: queries are made of a latent of their own, of so many elements; 0 = of the layer's input.
    eps: of the norms of the latents.
    """

    rank: int
    plain_dim: int
    rope_dim: int
    value_dim: int
    query_rank: int = 0
    eps: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("rank", "plain_dim", "rope_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"latent {name} must be at least 1, got {getattr(self, name)}")
        if self.rope_dim % 2:
            raise ValueError(f"latent rope_dim {self.rope_dim} must be even to rotate")
        if self.query_rank < 0 or self.eps < 0:
            raise ValueError(f"latent query_rank {self.query_rank} and eps {self.eps} must not be negative")

    @property
    def head_dim(self) -> int:
        """Elements of a head's queries and keys."""
        return self.plain_dim + self.rope_dim

    @property
    def cached(self) -> int:
        """Numbers of a token in the cache, of each layer."""
        return self.rank + self.rope_dim

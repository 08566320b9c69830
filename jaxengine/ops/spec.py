"""How an attention layer differs from softmax(q kᵀ) v, as data that every back end understands."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionSpec:
    """The static part: a kernel is compiled for it. Numbers per head (ALiBi slopes, sinks) are in `AttentionBias`.

    scale: multiplies q·k; None is head_dim^-0.5.
    window: key j is visible to query i iff 0 <= i - j < window; 0 is no window.
    softcap: c > 0 turns a scaled score s into c·tanh(s/c) (Gemma 2); 0 is none.
    alibi_scale: ALiBi is rounded as in `ops/alibi.py`, then multiplied by this; 0 is exact.
    latent: R > 0: the first R elements of a key are its value. The caches hold these, and the rest of the key, once.

    The order is scale, soft cap, biases, mask, softmax. ALiBi (Press et al. 2021, arXiv 2108.12409) adds slope·(j - i);
    relative positions (Raffel et al. 2019, arXiv 1910.10683) add a learned number for j - i. A sink (Xiao et al. 2023,
    arXiv 2309.17453, learned as in gpt-oss) is one more logit per head, which takes weight and has no value.
    """

    scale: float | None = None
    window: int = 0
    softcap: float = 0.0
    alibi_scale: float = 0.0
    latent: int = 0

    def __post_init__(self) -> None:
        if self.window < 0:
            raise ValueError(f"window must be at least 0, got {self.window}")
        if self.softcap < 0:
            raise ValueError(f"softcap must be at least 0, got {self.softcap}")
        if self.latent and self.scale is None:
            raise ValueError("a latent needs a scale: that of the heads it stands for")

    def value_dim(self, head_dim: int) -> int:
        """Elements of a value where keys have `head_dim`."""
        return self.latent or head_dim

    def scale_for(self, head_dim: int) -> float:
        return head_dim**-0.5 if self.scale is None else self.scale

"""Which stored rows make the matrices of latent attention.

A checkpoint has one matrix for the queries of all heads, each head's part that turns behind the other; one for the
latent, the shared key behind it; and one that makes keys and values of latents, each head's value behind its key. Pairs
that turn together and are stored side by side come to lie half a part asunder.
"""

import numpy as np

from jaxengine.architecture.latent import Latent

KINDS = ("q", "kv_a", "k_up", "v_up")


def latent_rows(kind: str, latent: Latent, heads: int, interleaved: bool) -> tuple[np.ndarray, int]:
    """Of the parameter `kind`: the stored row of each of its outputs, all axes as one, and how many rows are stored."""
    if kind == "kv_a":
        return _turning_last(latent.rank, latent, interleaved), latent.cached
    first_of_head = np.arange(heads)[:, None]
    if kind == "q":
        rows = first_of_head * latent.head_dim + _turning_last(latent.plain_dim, latent, interleaved)
        return rows.reshape(-1), heads * latent.head_dim
    of_head = latent.plain_dim + latent.value_dim
    own = np.arange(latent.plain_dim) if kind == "k_up" else np.arange(latent.plain_dim, of_head)
    return (first_of_head * of_head + own).reshape(-1), heads * of_head


def _turning_last(plain: int, latent: Latent, interleaved: bool) -> np.ndarray:
    """Rows of `plain` elements and of a part that turns."""
    turning = np.arange(latent.rope_dim)
    if interleaved:
        turning = np.concatenate([turning[::2], turning[1::2]])
    return np.concatenate([np.arange(plain), plain + turning])

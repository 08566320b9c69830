"""How the hidden states of a prompt become one vector, its embedding."""

from typing import Literal

Pooling = Literal["last", "mean"]  # the last token's, or the mean over all tokens
POOLINGS: tuple[Pooling, ...] = ("last", "mean")


def pooling_named(name: str) -> Pooling | None:
    """None where `name` is none of `POOLINGS`."""
    return next((each for each in POOLINGS if each == name), None)

"""What the engine takes of one picture, which the gateway fits pictures into before it refuses them."""

from dataclasses import dataclass
from typing import Protocol, Self

from gateway.images.plan import PicturePlan

ANY = 1 << 40  # more than any picture has


class Described(Protocol):
    """An engine's description: 0 is no bound."""

    @property
    def max_image_patches(self) -> int: ...
    @property
    def max_image_tokens(self) -> int: ...


@dataclass(frozen=True)
class Room:
    """The most patches of a picture, and the most tokens that they become."""

    patches: int = ANY
    tokens: int = ANY

    @classmethod
    def of(cls, engine: Described) -> Self:
        return cls(engine.max_image_patches or ANY, engine.max_image_tokens or ANY)

    def holds(self, plan: PicturePlan) -> bool:
        return plan.shape.patches <= self.patches and plan.rows <= self.tokens

"""What the engine takes of one picture, which the gateway fits pictures into before it refuses them."""

from dataclasses import dataclass

from gateway.images.plan import PicturePlan

ANY = 1 << 40  # more than any picture has


@dataclass(frozen=True)
class Room:
    """The most patches of a picture, and the most tokens that they become."""

    patches: int = ANY
    tokens: int = ANY

    def holds(self, plan: PicturePlan) -> bool:
        return plan.shape.patches <= self.patches and plan.rows <= self.tokens

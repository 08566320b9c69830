"""Which images are encoded in which step, and so how far a chunk of a prompt that has some may reach."""

from collections.abc import Callable, Sequence

from jaxengine.architecture.picture import PictureShape
from jaxengine.architecture.vision import Horizon

Fits = Callable[[Sequence[PictureShape]], bool]


class Sight:
    """
    Args:
        rows: of the device's pool.
        horizon: of the model's `Vision`.
        fits: whether one step can encode these pictures.
    """

    def __init__(self, rows: int, horizon: Horizon, fits: Fits) -> None:
        self.rows = rows
        self.horizon = horizon
        self.fits = fits

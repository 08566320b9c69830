"""The check of one number that a request gives."""

from numbers import Real


def check_range(name: str, value: object, low: float, high: float, *, whole: bool = False, above: bool = False) -> None:
    """Raise ValueError naming field, value and limit unless `value` is a number in [low, high], or (low, high] if it
    must be `above`, and a `whole` one where it must be.
    """
    if not (isinstance(value, int) and not isinstance(value, bool) if whole else isinstance(value, Real)):
        raise ValueError(f"{name} must be a {'whole ' * whole}number, got {value!r}")
    if not (low <= value <= high) or (above and value == low):  # type: ignore[operator]  # NaN fails every comparison
        raise ValueError(f"{name} must be in {'(' if above else '['}{low}, {high}], got {value}")

"""CUDA_VISIBLE_DEVICES, read as CUDA reads it."""

import itertools

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_devices(value: str) -> list[str]:
    """The numbers and UUIDs that `value` names, up to a -1."""
    names = (name.strip() for name in value.split(","))
    return [*filter(None, itertools.takewhile(lambda name: name != "-1", names))]

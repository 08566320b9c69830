"""A picture's patches as the engine is sent them, within what it says of itself."""

from typing import Protocol

import numpy as np

from jaxengine.rpc import engine_pb2 as pb


class Shape(Protocol):
    """A `PictureShape`."""

    @property
    def tiles(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def height(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def patches(self) -> int: ...


def sees(description: pb.Description) -> bool:
    """Whether the engine takes images."""
    return description.HasField("image_token_id")


def image_to(digest: bytes, offset: int, length: int, shape: Shape, patches: bytes, dtype: str) -> pb.Image:
    """An image at `offset` of a prompt, of which it has `length` tokens.

    Args:
        patches: as `patch_bytes` makes them.
        dtype: of these, as the engine's description says.
    """
    tiles = [pb.Tile(rows=rows, columns=columns) for rows, columns in shape.tiles]
    return pb.Image(
        digest=digest,
        offset=offset,
        length=length,
        tiles=tiles,
        height=shape.height,
        width=shape.width,
        patches=patches,
        dtype=dtype,
    )


def patch_bytes(patches: np.ndarray, dtype: str) -> bytes:
    """f32 `patches` [N, patch_values] as little-endian bytes of `dtype`, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(patches, "<f4").view("<u4")
    if dtype == "bfloat16":
        bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return bits.tobytes()

"""A picture's patches as the engine is sent them, within what it says of itself."""

from typing import Protocol

from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.limits import MAX_PATCH_BYTES, PATCH_DTYPES


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


def patch_bytes(description: pb.Description, patches: int) -> int:
    """Of so many patches in a message."""
    return patches * description.patch_values * PATCH_DTYPES.get(description.patch_dtype, 0)


def check_bytes(description: pb.Description, patches: int) -> None:
    """Raises ValueError if a request with so many patches, of all its images, is too large for a message."""
    size = patch_bytes(description, patches)
    if size > MAX_PATCH_BYTES:
        raise ValueError(f"images have {size} bytes of patches, at most {MAX_PATCH_BYTES} are read: send smaller ones")


def image_to(digest: bytes, offset: int, length: int, shape: Shape, patches: bytes, dtype: str) -> pb.Image:
    """An image at `offset` of a prompt, of which it has `length` tokens.

    Args:
        patches: their numbers, little-endian.
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

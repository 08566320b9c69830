"""Pictures of strangers are decoded by a helper process, one in each of its children."""

from pathlib import Path
from typing import Any

import numpy as np

from gateway.images.header import PictureHeader

Patches = np.ndarray[tuple[int, int], np.dtype[Any]]  # [N, patch_values]


class PictureHelper:
    """Decodes pictures and makes patches of them as the processor of the model in `directory` does.

    The helper process starts with `start` or when it is first needed, and again when it has died. It ends with
    `close`, or with this process.

    Args:
        max_pixels: of one picture, from which the limits of its child follow.
        dtype: "float32" or "bfloat16", of the patches.
    """

    def __init__(self, directory: Path, *, max_pixels: int, dtype: str = "float32") -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Have the helper load its processor now. Does not wait for it."""
        raise NotImplementedError

    async def patches(
        self, data: bytes, header: PictureHeader, shape: tuple[int, int], detail: str | None = None
    ) -> Patches:
        """The patches of the picture in file `data`, whose header is `header`: an array of `shape` [N, patch_values].

        `detail` is what `ImageProcessor.plan` was given. Cancelling this ends the work.

        Raises:
            RequestError: without `param`. INVALID: it cannot be decoded, or not within the limits of memory and time;
                OVERLOADED: too many wait; UNAVAILABLE: the helper cannot be started, or `close` was called.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """End the process and its children."""
        raise NotImplementedError

"""Pictures of strangers are decoded by a helper process, one in each of its children.

See `helper_process` for how. Nothing of a picture but arrays of numbers comes back, through memory that both share, and
none of it is unpickled or parsed. A picture that breaks its limits, or its child, is refused; others go on.
"""

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from gateway.errors import SHUTTING_DOWN, Kind, RequestError
from gateway.images.header import PictureHeader
from gateway.images.helper_life import HelperDied, HelperLife
from gateway.images.helper_messages import DTYPES, Ending, Job, dtype_of
from gateway.images.room import Room

logger = logging.getLogger(__name__)

Patches = np.ndarray[tuple[int, int], np.dtype[Any]]  # [N, patch_values]

PROGRAM = "gateway.images.helper_process"
AT_ONCE = max(2, min(8, (os.cpu_count() or 2) // 2))  # pictures
MAX_WAITING = 256  # further ones
PATIENCE = 120.0  # seconds for an answer of a helper that may still be loading
PAUSE = 5.0  # seconds between lives that ended without an answer
MESSAGES = {
    Ending.UNDECODED: "the image cannot be decoded: its data are damaged or cut off",
    Ending.OTHER_SIZE: "the image cannot be decoded: it has not the size that its header says",
    Ending.UNPROCESSED: "the image cannot be processed for this model",
    Ending.MEMORY: "the image takes too much memory to decode",
    Ending.TIME: "the image takes too long to decode",
    Ending.CRASH: "the image cannot be decoded: its data are damaged",
}


class PictureHelper:
    """Decodes pictures and makes patches of them as the processor of the model in `directory` does.

    The helper process starts with `start` or when it is first needed, and again when it has died. It ends with
    `close`, or with this process.

    Args:
        dtype: "float32" or "bfloat16", of the patches.
        room: the engine's, which pictures are planned for.
        program: the module that is run; tests have their own.
    """

    def __init__(self, directory: Path, *, dtype: str = "float32", room: Room = Room(), program: str = PROGRAM) -> None:
        assert dtype in DTYPES
        self._program = program
        self._arguments = (dtype, str(directory.absolute()), str(room.patches), str(room.tokens))
        self._dtype = dtype_of(dtype)
        self._life: HelperLife | None = None
        self._not_before = 0.0  # the moment, in seconds of the monotonic clock, of the next life
        self._closed = False
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    def start(self) -> None:
        """Have the helper load its processor now. Does not wait for it; one that cannot start is tried again later."""
        try:
            self._running()
        except RequestError as error:
            logger.warning("%s", error)

    async def patches(
        self, data: bytes, header: PictureHeader, shape: tuple[int, int], detail: str = "high"
    ) -> Patches:
        """The patches of the picture in file `data`, whose header is `header`: an array of `shape` [N, patch_values].

        `detail` is what `ImageProcessor.plan` was given. Cancelling this ends the work.

        Raises:
            RequestError: without `param`. INVALID: it cannot be decoded, or not within the limits of memory and time;
                OVERLOADED: too many wait; UNAVAILABLE: the helper cannot be started, or `close` was called.
        """
        if self._waiting >= MAX_WAITING:
            raise RequestError(Kind.OVERLOADED, f"{MAX_WAITING} images wait to be decoded", retry_after=1)
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            job = Job(0, header.format, header.width, header.height, detail, *shape)
            return await self._asked(job, data, shape)
        finally:
            self._slots.release()

    async def close(self) -> None:
        """End the process and its children."""
        self._closed = True
        if (life := self._life) is not None:
            life.close()
            await life.wait()

    async def _asked(self, job: Job, data: bytes, shape: tuple[int, int]) -> Patches:
        patches = np.empty(shape, self._dtype)
        memory = patches.reshape(-1).view(np.uint8).data
        for _ in range(2):
            life = self._running()
            try:
                async with asyncio.timeout(PATIENCE):
                    ending = await life.run(job, data, memory)
            except (HelperDied, TimeoutError):
                life.close()
                continue
            except OSError as error:  # there is no memory, or no descriptor
                logger.warning("an image was not handed to the process that decodes images: %s", error.strerror)
                break
            if ending is not Ending.DONE:
                raise RequestError.invalid(MESSAGES[ending])
            return patches
        raise _unavailable()

    def _running(self) -> HelperLife:
        if self._closed:
            raise RequestError(Kind.UNAVAILABLE, SHUTTING_DOWN, retry_after=int(PAUSE))
        if self._life is not None and self._life.ended:
            self._mourn(self._life)
            self._life = None
        if self._life is None and time.monotonic() < self._not_before:
            raise _unavailable()
        try:
            self._life = self._life or HelperLife(self._program, self._arguments)
        except OSError as error:
            logger.warning("the process that decodes images cannot start: %s", error.strerror)
            raise _unavailable() from None
        return self._life

    def _mourn(self, life: HelperLife) -> None:
        logger.warning("the process that decodes images ended%s", life.last_words())
        if not life.answered:
            self._not_before = time.monotonic() + PAUSE


def _unavailable() -> RequestError:
    return RequestError(Kind.UNAVAILABLE, "images cannot be decoded now", retry_after=int(PAUSE))

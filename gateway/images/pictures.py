"""What one process sees with: for the model that is served, if it sees, how; else why pictures are refused."""

import logging
from collections.abc import Sequence
from pathlib import Path

from gateway.config.options import Options
from gateway.engine.images import sees
from gateway.errors import RequestError
from gateway.images.acquisition import Acquisition
from gateway.images.fetch import Fetcher, FetchLimits
from gateway.images.helper import PictureHelper
from gateway.images.memory import ImageMemory
from gateway.images.picture import Source
from gateway.images.processor import ImageProcessor
from gateway.images.room import Room
from gateway.images.sight import Sight
from gateway.text.model_text import ModelText
from jaxengine.rpc import engine_pb2 as pb

logger = logging.getLogger(__name__)

BLIND = "this model reads no images"


class Pictures:
    """`prepare` finds out whether a model sees, and `sight` is how the last one does; None of one that does not.

    Args:
        helper: the class of what decodes.
    """

    def __init__(self, options: Options, helper: type[PictureHelper] = PictureHelper) -> None:
        self._options, self._helper_class = options, helper
        limits = FetchLimits(options.image_fetch_timeout, options.max_image_size)
        self._files = Acquisition(Fetcher(options.allowed_media_domains, limits), options.max_image_size)
        self.memory = ImageMemory(options.max_image_memory)
        self._helper: PictureHelper | None = None
        self._why = BLIND  # pictures are refused
        self._of: ModelText | None = None
        self.sight: Sight | None = None

    async def prepare(self, description: pb.Description, model: ModelText) -> None:
        """Be ready for pictures to `model`, which the engine describes. Several engines may become ready at once."""
        if self._of is model:
            return
        last, self._helper = self._helper, None
        self.sight, self._of, self._why = None, model, BLIND
        if sees(description):
            self._open(description, model)
        if last is not None:
            await last.close()

    def _open(self, description: pb.Description, model: ModelText) -> None:
        most = min(self._options.max_images, description.max_images or self._options.max_images)
        if not most:
            self._why = "this server reads no images (--max-images 0)"
            return
        directory, max_pixels = Path(description.model_dir), self._options.max_image_pixels
        room, dtype = Room.of(description), description.patch_dtype or "float32"
        try:
            processor = ImageProcessor.open(directory, room)
            helper = self._helper_class(directory, dtype=dtype, room=room)
            earlier = self.memory.earlier
            earlier.clear()  # another engine may want other numbers of them
            self.sight = Sight(
                processor, model, description, self._files, helper, earlier, most=most, max_pixels=max_pixels
            )
        except (OSError, ValueError) as error:
            self._why = "this server cannot read images for this model"
            logger.warning("images are refused: %s", error)
            return
        self._helper = helper
        helper.start()

    def seeing(self, sources: Sequence[Source], field: str) -> Sight:
        """What reads `sources`, of which there are some, in `field`. Raises RequestError: nothing does, or they are too
        many.
        """
        if self.sight is None:
            first = sources[0].field
            raise RequestError.invalid(f"{first}: {self._why}, only text", first)
        self.sight.check_count(sources, field)
        return self.sight

    async def close(self) -> None:
        helper, self._helper = self._helper, None
        self.sight, self._of, self._why = None, None, BLIND
        if helper is not None:
            await helper.close()

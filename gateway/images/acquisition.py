"""From what a request says of a picture to the bytes of its file, whichever way it comes."""

from gateway.errors import RequestError
from gateway.images.fetch import Fetcher
from gateway.images.locator import Remote, embedded_bytes, parse_locator, too_large

# What clients call pictures. Many call every picture by the same name, so the content decides which it is.
MIME_TYPES = frozenset(
    {
        *("image/png", "image/apng", "image/x-png", "image/jpeg", "image/jpg", "image/pjpeg", "image/webp"),
        *("image/gif", "image/bmp", "image/x-bmp", "image/x-ms-bmp", "image/tiff", "image/tif"),
        *("application/octet-stream", "binary/octet-stream"),
    }
)


class Acquisition:
    """Files of pictures, of at most `max_bytes` each."""

    def __init__(self, fetcher: Fetcher, max_bytes: int) -> None:
        self._fetcher = fetcher
        self._max_bytes = max_bytes

    async def file(self, url: str) -> bytes:
        """The file that a `data:`, http or https URL stands for. Raises RequestError, without `param`."""
        locator = parse_locator(url, self._max_bytes)
        if isinstance(locator, Remote):
            return await self._fetcher.fetch(locator)
        if locator.mime not in MIME_TYPES:
            raise RequestError.invalid("the image's data: URL must be of type image/png, jpeg, webp, gif, bmp or tiff")
        data = await embedded_bytes(locator)
        if len(data) > self._max_bytes:
            raise too_large(self._max_bytes)
        return data

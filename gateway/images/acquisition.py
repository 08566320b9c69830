"""From what a request says of a picture to the bytes of its file, whichever way it comes."""

from gateway.images.fetch import Fetcher


class Acquisition:
    """Files of pictures, of at most `max_bytes` each."""

    def __init__(self, fetcher: Fetcher, max_bytes: int) -> None:
        raise NotImplementedError

    async def file(self, url: str) -> bytes:
        """The file that a `data:`, http or https URL stands for. Raises RequestError, without `param`."""
        raise NotImplementedError

"""No URL reaches what is not public, whatever is allowed by name: a server on this machine waits in vain."""

import asyncio

from gateway.errors import Kind, RequestError
from gateway.images.acquisition import Acquisition
from gateway.images.fetch import Fetcher, FetchLimits
from tests.gateway.images.hostile_server import PICTURE, hostile_server
from tests.gateway.images.hostile_urls import hostile_urls, redirecting_urls

LIMITS = FetchLimits(seconds=5, size=1 << 20)


async def messages(files: Acquisition, urls: list[str]) -> list[str]:
    """The reasons why they are refused, which they must be."""
    answers = await asyncio.gather(*map(files.file, urls), return_exceptions=True)
    for url, answer in zip(urls, answers, strict=True):
        assert isinstance(answer, RequestError) and answer.kind is Kind.INVALID, (url, answer)
    return [str(answer) for answer in answers]


async def test_no_url_reaches_this_machine() -> None:
    async with hostile_server() as canary:
        files = Acquisition(Fetcher(["*", f"*:{canary.port}"], LIMITS), LIMITS.size)
        urls = list(hostile_urls(canary.port))
        assert len(urls) > 90
        for message in await messages(files, urls):
            assert "127" not in message and len(message) < 200
        assert canary.hits == 0


async def test_no_redirect_of_an_allowed_host_does() -> None:
    async with hostile_server() as canary, hostile_server() as server:
        allowed = ["*", f"*:{canary.port}", f"127.0.0.1:{server.port}"]
        files = Acquisition(Fetcher(allowed, LIMITS), LIMITS.size)
        assert await files.file(f"http://127.0.0.1:{server.port}/redirect?302,/picture") == PICTURE
        urls = list(redirecting_urls(server.port, canary.port))
        assert set(await messages(files, urls)) == {"the image could not be fetched"}
        assert canary.hits == 0 and server.hits == len(urls) + 3  # /etc/passwd is a path of its own

"""One GET of a picture over HTTP/1.1 from an address that was checked, by a server that may mean ill.

Nothing of the client's or of ours goes with it: no cookies, no credentials, no proxy of the environment. The answer is
read as it comes and given up as soon as it breaks a bound. Compression is not asked for, and refused if it comes: a
picture gains nothing by it, and a bomb does.
"""

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field

import h11

from gateway.images.addresses import Address
from gateway.images.locator import Remote

READ_BYTES = 64 << 10
MAX_HEAD = 32 << 10  # bytes
MAX_INTERIM = 8  # answers of 1xx before the answer
PART_BYTES = 256  # chunks of fewer bytes on average cost more to take apart than they bring
FREE_PARTS = 1024
HEADERS = (("User-Agent", "text-generation-jax"), ("Accept", "image/*"), ("Accept-Encoding", "identity"))


class Refused(Exception):
    """The answer breaks a bound. The message is for the log."""


class TooLarge(Refused):
    """The body has more bytes than it may."""


@dataclass
class Answer:
    """body: empty unless the status is 200."""

    status: int
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)


async def get(remote: Remote, address: Address, tls: ssl.SSLContext, max_bytes: int, connect_seconds: float) -> Answer:
    """What `remote` answers at `address`. Takes as long as it likes: the caller ends it.

    Raises:
        Refused: it breaks a bound.
        OSError: no connection within `connect_seconds`, or it was lost.
        h11.RemoteProtocolError: it is no HTTP, or ends too early.
    """
    secure = tls if remote.scheme == "https" else None
    name = remote.host if secure else None
    try:
        async with asyncio.timeout(connect_seconds):
            reader, writer = await asyncio.open_connection(str(address), remote.port, ssl=secure, server_hostname=name)
    except TimeoutError:
        raise ConnectionError(f"no connection within {connect_seconds:g} s") from None
    try:
        return await _Exchange(reader, writer, max_bytes).run(remote)
    finally:
        writer.transport.abort()  # without a farewell, for which one would have to wait


class _Exchange:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_bytes: int) -> None:
        self._reader, self._writer, self._max_bytes = reader, writer, max_bytes
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)

    async def run(self, remote: Remote) -> Answer:
        headers = [("Host", remote.authority), *HEADERS, ("Connection", "close")]
        request = h11.Request(method="GET", target=remote.target, headers=headers)
        self._writer.write(self._http.send(request) + self._http.send(h11.EndOfMessage()))
        answer = await self._head()
        if answer.status == 200:
            _check_head(answer, self._max_bytes)
            await self._body(answer.body)
        return answer

    async def _head(self) -> Answer:
        for _ in range(MAX_INTERIM + 1):
            event = await self._next()
            if isinstance(event, h11.Response):
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                return Answer(event.status_code, headers)
            if not isinstance(event, h11.InformationalResponse):
                break
        raise Refused("no answer")

    async def _body(self, body: bytearray) -> None:
        parts = 0
        while isinstance(event := await self._next(), h11.Data):
            body += event.data
            parts += 1
            if len(body) > self._max_bytes:
                raise TooLarge("it has too many bytes")
            if parts > FREE_PARTS + len(body) // PART_BYTES:
                raise Refused("it comes in too small parts")
        if not isinstance(event, h11.EndOfMessage):
            raise Refused("the answer ended early")

    async def _next(self) -> h11.Event | type[h11.PAUSED]:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(READ_BYTES))
        return event  # type: ignore[return-value]


def _check_head(answer: Answer, max_bytes: int) -> None:
    kind = answer.headers.get("content-type", "image/").partition(";")[0].strip().lower()
    if not kind.startswith("image/") and kind not in ("application/octet-stream", "binary/octet-stream"):
        raise Refused(f"its type is {kind[:60]!r}")
    if answer.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Refused("it is compressed")
    with contextlib.suppress(ValueError):  # h11 has checked it
        if int(answer.headers.get("content-length", "0")) > max_bytes:
            raise TooLarge("its length is said to be too large")

"""Triton's binary tensor extension: JSON whose length a header tells, and behind it raw tensors.

Source: Triton, docs/protocol/extension_binary_data.md.
"""

import re
import zlib

from fastapi import Request

from gateway.errors import Kind, RequestError
from gateway.http.body import raw_body
from gateway.http.encoding import in_thread

LENGTH = "inference-header-content-length"
_DIGITS = re.compile(r"\d{1,12}")
INFLATED = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}  # by content-encoding, zlib's `wbits`


async def read_parts(request: Request, limit: int) -> tuple[bytes | None, bytes]:
    """A body's JSON and what follows it. Without JSON, by a header of length 0, the body is one raw tensor.

    Args:
        limit: bytes of the body once it is inflated.

    Raises:
        RequestError: the header is no length of this body, or the body cannot be inflated.
    """
    encoding = request.headers.get("content-encoding", "identity").lower()
    raw = await raw_body(request)
    body = await in_thread(lambda: inflated(raw, encoding, limit), when=encoding != "identity")  # 32 kB may be 32 MB
    lengths = request.headers.getlist(LENGTH)
    if not lengths:
        return body, b""
    given = ",".join(lengths)  # of two, none is the length
    if not _DIGITS.fullmatch(given) or int(given) > len(body):
        message = f"the header {LENGTH} must be the length of the JSON in a body of {len(body)} bytes"
        raise RequestError(Kind.MALFORMED, message)
    length = int(given)
    return (body[:length] if length else None), body[length:]


def inflated(body: bytes, encoding: str, limit: int) -> bytes:
    """Raises RequestError: the encoding is another, or wrong, or the body is longer than `limit`."""
    if encoding == "identity":
        return body
    if encoding not in INFLATED:
        message = f"content-encoding must be one of identity, {', '.join(INFLATED)}"
        raise RequestError(Kind.MEDIA_TYPE, message)
    reader = zlib.decompressobj(INFLATED[encoding])
    try:
        whole = reader.decompress(body, limit + 1)
    except zlib.error:
        raise RequestError(Kind.MALFORMED, f"the body is not valid {encoding}") from None
    if len(whole) > limit:
        raise RequestError(Kind.BODY_TOO_LONG, f"The request body is longer than {limit} bytes")
    if not reader.eof or reader.unused_data:
        raise RequestError(Kind.MALFORMED, f"the body is not valid {encoding}")
    return whole

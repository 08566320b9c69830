"""The priority that a proxy gives a request by a header, as vLLM takes it: bodies are its clients'."""

import re
from typing import TypeVar

from fastapi import Request

from gateway.errors import RequestError
from gateway.routes.openai.common import Common

HEADER = "x-vllm-priority"
LEAST, MOST = -(2**31), 2**31 - 1

_WHOLE = re.compile(r"[+-]?[0-9]{1,10}")

Body = TypeVar("Body", bound=Common)


def with_priority(body: Body, request: Request) -> Body:
    """`body` with the priority of the header, which counts before its own. Raises RequestError."""
    given = request.headers.get(HEADER)
    if given is None:
        return body
    if not _WHOLE.fullmatch(given) or not LEAST <= int(given) <= MOST:
        raise RequestError.invalid(f"the header {HEADER} must be a whole number in {LEAST}..{MOST}", HEADER)
    return body.model_copy(update={"priority": int(given)})

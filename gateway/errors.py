"""Why a request was refused or failed, before any dialect words it.

Whatever refuses a request raises a `RequestError`; `gateway.routes.tgi.errors` and `gateway.routes.openai.errors` turn
its kind into their status, body and headers. Messages are ours: they never carry a library's exception text or the
client's input at length.
"""

import logging
from enum import Enum, auto
from typing import Literal

from gateway.config.options import Options
from jaxengine.rpc import engine_pb2 as pb

Bound = Literal["requests", "tokens"]  # which limit of `Admission` refuses a request

logger = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down"
CLIENT_CLOSED_REQUEST = 499  # for the access log: nobody receives it
TOO_LONG = "This model's maximum context length is exceeded"  # agents look for these words
QUEUE_RETRY = 10  # seconds: who waited in vain meets a queue that takes longer than that to shrink


class Kind(Enum):
    HEAD_TOO_LONG = auto()
    TWO_LENGTHS = auto()  # a content-length and a transfer-encoding
    MALFORMED = auto()  # not JSON, not UTF-8
    MEDIA_TYPE = auto()  # not declared as JSON
    BODY_TOO_LONG = auto()
    BODY_TIMEOUT = auto()
    UNAUTHORIZED = auto()
    SHAPE = auto()  # JSON, but not the fields or types of this route
    INVALID = auto()  # the right shape, a value we can't serve
    CONTEXT_LENGTH = auto()
    TEMPLATE = auto()
    MODEL_NOT_FOUND = auto()
    OVERLOADED = auto()
    UNAVAILABLE = auto()  # engine starting, draining or restarting
    DEADLINE = auto()
    GENERATION = auto()  # failed inside the engine
    INTERNAL = auto()  # a bug of ours


UNREAD = (Kind.BODY_TOO_LONG, Kind.BODY_TIMEOUT)  # the rest of the body is nobody's request: the connection closes


class RequestError(Exception):
    """A request that ends without an answer. `retry_after` is in whole seconds."""

    def __init__(self, kind: Kind, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after = retry_after

    @classmethod
    def invalid(cls, message: str, param: str | None = None) -> "RequestError":
        return cls(Kind.INVALID, message, param=param)


class ClientGone(Exception):
    """The client closed the connection: nobody is left to answer."""


def as_request_error(error: Exception) -> RequestError:
    """Any exception as one a dialect can word; what we did not foresee is logged and told without detail."""
    if isinstance(error, RequestError):
        return error
    logger.error("unexpected failure in a request", exc_info=error)
    return RequestError(Kind.INTERNAL, "internal error")


def engine_failure(event: pb.RequestEvent, options: Options) -> RequestError | None:
    """The error a finishing event stands for, or None where it is an ordinary end."""
    finish = event.finish
    if finish == pb.DEADLINE:
        limit = f"{options.request_timeout:g} s (--request-timeout)"
        return RequestError(Kind.DEADLINE, f"the request was not finished within {limit}")
    if finish == pb.QUEUE_TIMEOUT:
        limit = f"{options.queue_timeout:g} s (--queue-timeout)"
        return RequestError(Kind.OVERLOADED, f"the request was not begun within {limit}", retry_after=QUEUE_RETRY)
    if finish == pb.CANCELLED:
        return RequestError(Kind.UNAVAILABLE, SHUTTING_DOWN, retry_after=5)
    if finish == pb.INVALID:
        return RequestError(Kind.INVALID, event.error or "the engine refused the request")
    if finish == pb.ERROR:
        return RequestError(Kind.GENERATION, event.error or "generation failed")
    return None

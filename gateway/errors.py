"""Why a request was refused or failed, before any dialect words it.

Whatever refuses a request raises a `RequestError`; the `errors.py` of each dialect in `gateway.routes` turns its kind
into a status, body and headers. Messages are our own wording: they carry no library's exception text, and
no client's input at length.
"""

import logging
from enum import Enum, auto
from typing import Literal

from gateway.config.options import Options
from jaxengine.options.adapters import NO_ADAPTER
from jaxengine.rpc import engine_pb2 as pb

Bound = Literal["requests", "tokens"]  # which limit of `Admission` refuses a request

logger = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down"
CLIENT_CLOSED_REQUEST = 499  # status in the access log only: the client has gone
TOO_LONG = "This model's maximum context length is exceeded"  # agents look for these words
GRAMMAR = "grammar"  # the engine's reasons to refuse one begin so; TGI's field of that name asks for one
QUEUE_RETRY = 10  # seconds to advise after a queue timeout: a queue that caused one takes longer than that to shrink


class Kind(Enum):
    HEAD_TOO_LONG = auto()
    TWO_LENGTHS = auto()  # both a content-length and a transfer-encoding
    MALFORMED = auto()  # not JSON, not UTF-8
    MEDIA_TYPE = auto()  # not declared as JSON
    BODY_TOO_LONG = auto()
    BODY_TIMEOUT = auto()
    UNAUTHORIZED = auto()
    SHAPE = auto()  # JSON, but not the fields or types of this route
    INVALID = auto()  # the right shape, but a value that is out of range or not supported
    CONTEXT_LENGTH = auto()
    TEMPLATE = auto()
    MODEL_NOT_FOUND = auto()
    ADAPTER_GONE = auto()  # it was unloaded after the request had been checked
    NOT_KEPT = auto()  # no stored answer has the id in the path
    PREVIOUS_NOT_KEPT = auto()  # nor that which a request is to go on from
    OVERLOADED = auto()
    UNAVAILABLE = auto()  # the engine is starting, draining or restarting
    DEADLINE = auto()
    GENERATION = auto()  # failed inside the engine
    INTERNAL = auto()  # a bug of ours


# After these the rest of the body is not read, so the connection closes: it could not be told from the next request.
UNREAD = (Kind.BODY_TOO_LONG, Kind.BODY_TIMEOUT)


class RequestError(Exception):
    """A request that ends without an answer.

    param: name of the field at fault, in the dialects that report one.
    retry_after: whole seconds.
    """

    def __init__(self, kind: Kind, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after = retry_after

    @classmethod
    def invalid(cls, message: str, param: str | None = None) -> "RequestError":
        return cls(Kind.INVALID, message, param=param)


class ContextExceeded(RequestError):
    """More tokens than there is room for: `prompt` and `wanted` new ones, where `most` may be; `wanted` is 0 where the
    prompt alone is too long.
    """

    def __init__(self, message: str, param: str, *, prompt: int, wanted: int, most: int) -> None:
        super().__init__(Kind.CONTEXT_LENGTH, message, param=param)
        self.prompt, self.wanted, self.most = prompt, wanted, most


class ClientGone(Exception):
    """The client closed the connection: nobody is left to answer."""


def as_request_error(error: Exception) -> RequestError:
    """`error` as one that a dialect can word; an unexpected exception is logged, and its details stay in the log."""
    if isinstance(error, RequestError):
        return error
    logger.error("unexpected failure in a request", exc_info=error)
    return RequestError(Kind.INTERNAL, "internal error")


def deadline_passed(options: Options) -> RequestError:
    limit = f"{options.request_timeout:g} s (--request-timeout)"
    return RequestError(Kind.DEADLINE, f"the request was not finished within {limit}")


def engine_failure(event: pb.RequestEvent, options: Options) -> RequestError | None:
    """The error that a finishing event stands for; None for an ordinary end."""
    finish = event.finish
    if finish == pb.DEADLINE:
        return deadline_passed(options)
    if finish == pb.QUEUE_TIMEOUT:
        limit = f"{options.queue_timeout:g} s (--queue-timeout)"
        return RequestError(Kind.OVERLOADED, f"the request was not begun within {limit}", retry_after=QUEUE_RETRY)
    if finish == pb.CANCELLED:
        return RequestError(Kind.UNAVAILABLE, SHUTTING_DOWN, retry_after=5)
    if finish == pb.INVALID:
        return _refusal(event.error)
    if finish == pb.ERROR:
        return RequestError(Kind.GENERATION, event.error or "generation failed")
    return None


def _refusal(reason: str) -> RequestError:
    """The engine's reason to refuse a request. Of a grammar, `param` is `GRAMMAR`, whichever field asked for it."""
    if reason.startswith(f"{GRAMMAR}: "):
        return RequestError.invalid(f"{GRAMMAR} is not valid: {reason.removeprefix(f'{GRAMMAR}: ')}", GRAMMAR)
    if reason.startswith(NO_ADAPTER):
        return RequestError(Kind.ADAPTER_GONE, reason, param="model")
    return RequestError(Kind.INVALID, reason or "the engine refused the request")

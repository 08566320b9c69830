"""The ids of requests and the names of the model."""

import hashlib
import re
import uuid

from fastapi import Request

from gateway.config.options import Options
from jaxengine.rpc import engine_pb2 as pb

SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def request_id(request: Request, named: str | None = None) -> str:
    """The client's X-Request-Id if it is safe to repeat, else the `named` of its body, else a new one.

    The first call decides for the whole request.
    """
    if not hasattr(request.state, "request_id"):
        given = request.headers.get("x-request-id", "")
        request.state.request_id = given if SAFE_ID.fullmatch(given) else named or uuid.uuid4().hex
    return str(request.state.request_id)


def names(options: Options, description: pb.Description) -> tuple[str, ...]:
    """The names by which clients may ask for the model; answers carry the first."""
    return options.served_model_name or (description.model_id,)


def fingerprint(description: pb.Description, options: Options, adapter: pb.Adapter | None) -> str:
    """`system_fingerprint`: equal for equal weights, arithmetic and devices."""
    facts = (description.model_id, description.revision, description.dtype, description.device_kind)
    stored = (options.quantize, options.kv_cache_dtype, description.device_count)
    adapted = (adapter.name, adapter.path) if adapter is not None else ()
    return "fp_" + hashlib.sha256("\0".join(map(str, (*facts, *stored, *adapted))).encode()).hexdigest()[:10]

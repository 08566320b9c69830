"""Ids of requests and answers."""

import hashlib
import re
import uuid

from fastapi import Request

from jaxengine.rpc import engine_pb2 as pb

_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def request_id(request: Request) -> str:
    """The client's X-Request-Id where it is safe to repeat, else one of ours; the same for the whole request."""
    if not hasattr(request.state, "request_id"):
        given = request.headers.get("x-request-id", "")
        request.state.request_id = given if _SAFE_ID.fullmatch(given) else uuid.uuid4().hex
    return str(request.state.request_id)


def fingerprint(description: pb.Description) -> str:
    """`system_fingerprint`: equal for equal weights, arithmetic and devices."""
    facts = (description.model_id, description.revision, description.dtype, description.device_kind)
    return "fp_" + hashlib.sha256("\0".join((*facts, str(description.device_count))).encode()).hexdigest()[:10]

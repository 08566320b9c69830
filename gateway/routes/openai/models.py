"""The cards of `/v1/models`: one for each name of the one model, with the fields that vLLM's clients read."""

import time
import uuid
from typing import Any

from gateway.config.options import Options
from gateway.routes.openai.identity import names
from jaxengine.rpc import engine_pb2 as pb

STARTED = int(time.time())
PERMISSION = {
    "id": f"modelperm-{uuid.uuid4().hex}",
    "object": "model_permission",
    "created": STARTED,
    "allow_create_engine": False,
    "allow_sampling": True,
    "allow_logprobs": True,
    "allow_search_indices": False,
    "allow_view": True,
    "allow_fine_tuning": False,
    "organization": "*",
    "group": None,
    "is_blocking": False,
}


def cards(options: Options, description: pb.Description) -> list[dict[str, Any]]:
    return [_card(name, description) for name in names(options, description)]


def _card(name: str, description: pb.Description) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": STARTED,
        "owned_by": description.model_id,
        "root": description.model_id,
        "parent": None,
        "max_model_len": description.max_total_tokens,
        "permission": [PERMISSION],
    }

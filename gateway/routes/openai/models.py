"""The cards of `/v1/models`, with the fields that vLLM's and Anthropic's clients read.

There is one for each name of the one model, and then one for each of its adapters.
"""

import time
import uuid
from datetime import UTC, datetime
from typing import Any

from gateway.request.gateway_state import Gateway
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


def cards(gateway: Gateway, description: pb.Description) -> list[dict[str, Any]]:
    model = names(gateway.options, description)
    adapters = gateway.engine.adapters.served.values()
    return [
        *(_card(name, description.model_id, None, description) for name in model),
        *(_card(adapter.name, adapter.path, model[0], description) for adapter in adapters),
    ]


def listed(cards: list[dict[str, Any]]) -> dict[str, Any]:
    """The list of all cards, as OpenAI's and as Anthropic's only page."""
    page = {"has_more": False, "first_id": cards[0]["id"], "last_id": cards[-1]["id"]}
    return {"object": "list", "data": cards, **page}


def _card(name: str, root: str, parent: str | None, description: pb.Description) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": STARTED,
        "owned_by": description.model_id,
        "root": root,
        "parent": parent,
        "max_model_len": description.max_total_tokens,
        "permission": [PERMISSION],
        # of Anthropic
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(STARTED, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": description.max_total_tokens,
    }

"""Two thousand broken bodies with images over every route that reads them: each gets a clear 4xx or an answer."""

import asyncio
import json
import random
from typing import Any

import pytest

from tests.gateway.fixtures import serve
from tests.gateway.http.test_fuzz import SECONDS, check, mutated
from tests.gateway.seeing import base64_of, data_url, png

pytestmark = pytest.mark.slow

BODIES = 2_000
FILE = png(24, 16)
PART = {"type": "image_url", "image_url": {"url": data_url(FILE), "detail": "low"}, "uuid": "a"}
SOURCE = {"type": "base64", "media_type": "image/png", "data": base64_of(FILE)}
ITEM = {"type": "input_image", "image_url": data_url(FILE), "detail": "auto", "file_id": None}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": SOURCE}]}
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
CALLED = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
USER = {"role": "user", "content": [PART, {"type": "text", "text": f"CANARY ![]({data_url(FILE)})"}]}
ROUTES: dict[str, dict[str, Any]] = {
    "/generate": {"inputs": f"CANARY ![]({data_url(FILE)}) lo", "parameters": {"max_new_tokens": 2, "truncate": 300}},
    "/v1/chat/completions": {"messages": [USER], "max_tokens": 2, "truncate_prompt_tokens": 300, "n": 2},
    "/v1/chat/completions/batch": {"messages": [[USER], [USER]], "max_tokens": 2},
    "/v1/messages": {
        "model": "tgi",
        "max_tokens": 2,
        "messages": [
            {"role": "user", "content": [{"type": "image", "source": SOURCE}, {"type": "text", "text": "CANARY"}]},
            {"role": "assistant", "content": [CALL]},
            {"role": "user", "content": [RESULT]},
        ],
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [ITEM, {"type": "input_text", "text": "CANARY"}]},
            CALLED,
            {"type": "function_call_output", "call_id": "a", "output": [ITEM]},
        ],
        "max_output_tokens": 2,
    },
    "/v2/models/ensemble/generate": {"text_input": "CANARY", "image": [base64_of(FILE)], "max_tokens": 2},
    "/api/v1/generate": {"prompt": "CANARY", "images": [base64_of(FILE)], "max_length": 2, "memory": "a"},
}
SAME_BODY = {"/tokenize": "/generate", "/chat_tokenize": "/v1/chat/completions", "/": "/generate"}
SAME_BODY |= {"/v1/messages/count_tokens": "/v1/messages"}
PATHS = [*ROUTES, *SAME_BODY]


def damaged(draw: random.Random) -> str:
    """The file in base64 with some of its bytes changed, or without its end."""
    file = bytearray(FILE)
    for _ in range(draw.randint(0, 4)):
        file[draw.randrange(len(file))] = draw.randrange(256)
    return base64_of(bytes(file[: draw.choice([len(file), draw.randrange(len(file))])]))


async def test_no_body_with_images_breaks_the_server() -> None:
    draw = random.Random(20261126)
    statuses: dict[int, int] = {}
    whole = base64_of(FILE).encode()
    async with serve(sees="qwen2_5_vl", max_total_tokens=1000) as app:
        for number in range(BODIES):
            path = PATHS[number % len(PATHS)]
            body = ROUTES[SAME_BODY.get(path, path)]
            raw = mutated(body, draw) if draw.random() < 0.5 else json.dumps(body).encode()
            if draw.random() < 0.5:
                raw = raw.replace(whole, damaged(draw).encode())
            response = await asyncio.wait_for(app.raw(path, raw), SECONDS)
            check(path, response, raw)
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        assert app.engine.open == 0 and app.gateway.admission.active == 0
        assert any(each.images for each in app.engine.requests)
    assert statuses[200] > BODIES / 10, statuses
    assert statuses[400] + statuses[422] > BODIES / 4, statuses

"""The fields around the choices: id, time, model, fingerprint and usage, in whole answers and in chunks.

A stream has thousands of chunks: the part that all of them share is serialised once per request.
"""

import time
from typing import Any

from fastapi import Request, Response
from starlette.responses import JSONResponse

from gateway.http.encoding import json_bytes
from gateway.request.gateway_state import gateway_in
from gateway.request.output import Finish, OutputProcessor
from gateway.routes.openai.common import Common
from gateway.routes.openai.identity import fingerprint, names, request_id
from jaxengine.rpc import engine_pb2 as pb

DONE = b"data: [DONE]\n\n"
FINISH_REASONS = {Finish.LENGTH: "length", Finish.EOS: "stop", Finish.STOP: "stop", Finish.STOP_TOKEN: "stop"}


class Envelope:
    """The frame around one request's choices."""

    def __init__(
        self, request: Request, description: pb.Description, body: Common, adapter: str, prefix: str, object: str
    ) -> None:
        gateway = gateway_in(request)
        options = gateway.options
        self.fields: dict[str, Any] = {
            "id": f"{prefix}-{request_id(request)}",
            "object": object,
            "created": int(time.time()),
            "model": adapter or names(options, description)[0],
            "system_fingerprint": fingerprint(description, options, gateway.engine.adapters.served.get(adapter)),
        }
        self._head = b"data: " + json_bytes(self.fields)[:-1] + b',"choices":['
        self._continuous = body.continuous_usage
        self._tail = b',"usage":null}\n\n' if body.include_usage else b"}\n\n"
        self._once = b""

    def add_to_next_chunk(self, fields: dict[str, Any]) -> None:
        """Fields beside `choices` that only the next chunk carries."""
        self._once = b"," + json_bytes(fields)[1:-1] if fields else b""

    def chunk(self, choice: bytes, output: OutputProcessor, generated: int) -> bytes:
        """One event with one choice; continuous usage counts the `generated` tokens of that choice so far."""
        if self._continuous:
            return self.with_usage(choice, usage([output], generated=generated))
        return self._head + choice + self._end_of_choices() + self._tail

    def with_usage(self, choice: bytes, counts: dict[str, Any]) -> bytes:
        return self._head + choice + self._end_of_choices() + b',"usage":' + json_bytes(counts) + b"}\n\n"

    def _end_of_choices(self) -> bytes:
        once, self._once = self._once, b""
        return b"]" + once

    def answer(self, choices: list[dict[str, Any]], counts: dict[str, Any], **more: Any) -> Response:
        """The whole answer of a request that does not stream, with `more` beside its choices.

        Clients of vLLM read fields by attribute: those that only vLLM fills are null if OpenAI's schema permits it.
        """
        absent = {"service_tier": None, "kv_transfer_params": None, "metrics": None}
        return JSONResponse({**self.fields, "choices": choices, "usage": counts, **absent, **more})


def usage(outputs: list[OutputProcessor], *, generated: int | None = None) -> dict[str, Any]:
    """Counts of tokens: of every distinct prompt once, and of every sequence.

    `generated` replaces the count of generated tokens where not all were asked for, or not all are answered yet.
    """
    prompts = {id(each.prompt_ids): each for each in outputs}.values()
    prompt_tokens = sum(len(each.prompt_ids) for each in prompts)
    completion_tokens = sum(each.generated for each in outputs) if generated is None else generated
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(each.prompt.cached_tokens for each in prompts)},
    }


def finish_fields(output: OutputProcessor) -> dict[str, Any]:
    """Why a choice ended; `stop_reason` is the stop text or token id that ended it, as in vLLM."""
    assert output.finish is not None, "the choice has not ended"
    return {"finish_reason": FINISH_REASONS[output.finish], "stop_reason": output.stop_reason}

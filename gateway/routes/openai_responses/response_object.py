"""The `response` object: what was asked for, what came of it, and where it stands."""

import time
from typing import Any

from gateway.http.encoding import short_float
from gateway.request.output import Finish, OutputProcessor
from gateway.routes.openai.chat import Chat
from gateway.routes.openai.envelope import usage
from gateway.routes.openai_responses.input_items import Item, new_id
from gateway.routes.openai_responses.schemas import ResponseRequest

Response = dict[str, Any]


class Frame:
    """The fields of one response that do not change while it is made."""

    def __init__(self, body: ResponseRequest, chat: Chat, model: str, *, stored: bool) -> None:
        sampling = chat.outputs[0].request.sampling
        self.id, self.stored = new_id("resp"), stored
        self._output = chat.outputs[0]
        self._fields: Response = {
            "id": self.id,
            "object": "response",
            "created_at": int(time.time()),
            "background": False,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "metadata": body.metadata or {},
            "model": model,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id or None,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "service_tier": None,
            "store": stored,
            "temperature": short_float(sampling.temperature) if body.temperature is None else body.temperature,
            "text": {"format": (body.text.format if body.text else None) or {"type": "text"}},
            "tool_choice": _tool_choice(body.tool_choice),
            "tools": [_tool(each) for each in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": short_float(sampling.top_p) if body.top_p is None else body.top_p,
            "truncation": body.truncation or "disabled",
        }

    def begun(self) -> Response:
        return self._told("in_progress", [])

    def finished(self, output: list[Item], reasoning_tokens: int) -> Response:
        """The response, once the engine's output has ended."""
        cut = self._output.finish is Finish.LENGTH
        details = {"reason": "max_output_tokens"} if cut else None
        told = self._told("incomplete" if cut else "completed", output, incomplete_details=details)
        ended = {"completed_at": None if cut else int(time.time())}
        return {**told, **ended, "usage": _usage(self._output, reasoning_tokens)}

    def failed(self, output: list[Item], error: dict[str, str]) -> Response:
        return self._told("failed", output, error=error)

    def _told(self, status: str, output: list[Item], **more: Any) -> Response:
        empty = {"completed_at": None, "error": None, "incomplete_details": None, "usage": None}
        return {**self._fields, "status": status, "output": output, **empty, **more}


def _usage(output: OutputProcessor, reasoning_tokens: int) -> dict[str, Any]:
    """Nothing that a prompt leaves in the cache is counted apart, as nothing of it is charged."""
    counts = usage([output])
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {**counts["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": counts["total_tokens"],
    }


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str) and choice not in ("none", "auto", "required"):
        return {"type": "function", "name": choice}
    return choice or "auto"


def _tool(given: dict[str, Any]) -> dict[str, Any]:
    """The function as OpenAI lists it: with all of its fields."""
    named = {name: given.get(name) for name in ("name", "description", "parameters")}
    return {"type": "function", **named, "strict": given.get("strict") or False}

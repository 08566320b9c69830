"""How a server is asked for a stream, and what its events say: OpenAI's two routes, and TGI's.

On OpenAI's completions moments are taken as `vllm bench serve` takes them: every event with a choice is a chunk, even
one without text, as a token may be the middle of a character. Of a chat those are chunks whose choice has content,
reasoning or calls. There vLLM counts every event with a choice too: its TTFT ends with the role, which a server may
send before it has computed anything.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from gateway.benchmark.answer import Answer, Outcome
from gateway.benchmark.prompt import Prompt
from gateway.benchmark.sampling import Sampling

DONE = b"[DONE]"
MOST_TOKENS = 1 << 40
WRITTEN = ("content", "reasoning", "reasoning_content", "tool_calls", "function_call")


class Dialect(Protocol):
    """path: of the route."""

    name: str
    path: str

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """The request."""
        ...

    def read(self, event: Mapping[str, Any], answer: Answer, now: float) -> None:
        """Note what an event of a stream says."""
        ...

    def whole(self, body: Any, answer: Answer, now: float) -> None:
        """Note what an answer in one piece says."""
        ...


class OpenAI:
    """Args:
    model: named in each request.
    lengths: whether the server knows `ignore_eos` and `min_tokens`, which OpenAI's own does not.
    """

    def __init__(self, model: str, sampling: Sampling, *, lengths: bool) -> None:
        self._model, self._sampling, self._lengths = model, sampling, lengths

    def _common(self, prompt: Prompt) -> dict[str, Any]:
        fixed = {"ignore_eos": True, "min_tokens": prompt.tokens} if self._lengths and prompt.fixed else {}
        return {
            "model": self._model,
            "max_tokens": prompt.tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fixed,
        }

    def whole(self, body: Any, answer: Answer, now: float) -> None:
        if not isinstance(body, Mapping):
            return
        answer.ended = True
        if _choice(body):
            answer.chunks.append(now)
        _count(body.get("usage"), answer)


class Completions(OpenAI):
    name, path = "openai", "/v1/completions"

    def body(self, prompt: Prompt) -> dict[str, Any]:
        return {"prompt": prompt.text, **self._common(prompt), **self._sampling.completions()}

    def read(self, event: Mapping[str, Any], answer: Answer, now: float) -> None:
        if choice := _choice(event):
            answer.chunks.append(now)
            answer.ended |= choice.get("finish_reason") is not None
        _note(event, answer)


class Chat(OpenAI):
    name, path = "chat", "/v1/chat/completions"

    def body(self, prompt: Prompt) -> dict[str, Any]:
        messages = list(prompt.messages) or [{"role": "user", "content": prompt.text}]
        tools = {"tools": list(prompt.tools)} if prompt.tools else {}
        return {"messages": messages, **tools, **self._common(prompt), **self._sampling.chat()}

    def read(self, event: Mapping[str, Any], answer: Answer, now: float) -> None:
        if choice := _choice(event):
            delta = choice.get("delta") or {}
            if any(delta.get(name) for name in WRITTEN) or (delta.get("content") == "" and "role" not in delta):
                answer.chunks.append(now)
            answer.ended |= choice.get("finish_reason") is not None
        _note(event, answer)


class Tgi:
    """TGI has no field for a fixed length: a model that ends earlier answers less, and what it answered is counted."""

    name, path = "tgi", "/generate_stream"

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling

    def body(self, prompt: Prompt) -> dict[str, Any]:
        return {
            "inputs": prompt.text,
            "parameters": {"max_new_tokens": prompt.tokens, "details": True, **self._sampling.tgi()},
            "stream": True,
        }

    def read(self, event: Mapping[str, Any], answer: Answer, now: float) -> None:
        if event.get("token") is not None:
            answer.chunks.append(now)
        answer.ended |= event.get("generated_text") is not None
        details = event.get("details")
        if isinstance(details, Mapping):
            answer.prompt_tokens = _tokens(details.get("input_length"))
            _generated(details.get("generated_tokens"), answer)
        _note(event, answer)

    def whole(self, body: Any, answer: Answer, now: float) -> None:
        body = body[0] if isinstance(body, list) and body else body
        if isinstance(body, Mapping) and body.get("generated_text"):
            answer.ended = True
            answer.chunks.append(now)
            _generated((body.get("details") or {}).get("generated_tokens"), answer)


def _choice(event: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = event.get("choices")
    return choices[0] if choices else {}


def _note(event: Mapping[str, Any], answer: Answer) -> None:
    if usage := event.get("usage"):
        _count(usage, answer)
    if (error := event.get("error")) is not None:
        answer.fail(Outcome.BROKEN, str(error.get("message") if isinstance(error, Mapping) else error))


def _count(usage: Any, answer: Answer) -> None:
    if isinstance(usage, Mapping):
        answer.prompt_tokens = _tokens(usage.get("prompt_tokens"))
        answer.cached_tokens = _tokens((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
        _generated(usage.get("completion_tokens"), answer)


def _generated(tokens: Any, answer: Answer) -> None:
    if tokens is not None:
        answer.output_tokens, answer.counted = _tokens(tokens), True


def _tokens(count: Any) -> int:
    """A count; what is not told counts as 0. Raises ValueError where no answer could have so many."""
    found = int(count or 0)
    if not 0 <= found <= MOST_TOKENS:
        raise ValueError(f"a count of tokens of {count}")
    return found

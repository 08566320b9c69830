"""What KoboldAI's clients ask about a server: its versions, its model, its lengths, and how fast it answered last."""

import time
from typing import Any

from gateway.request.gateway_state import Gateway
from gateway.request.lifecycle import serving
from gateway.routes.kobold.lengths import Lengths
from gateway.routes.openai.identity import names
from gateway.routes.openai.models import STARTED

PROTOCOL = "1.2.5"  # of KoboldAI United, as KoboldCpp answers
KOBOLDCPP = "1.102"  # whose routes and fields these are
NOT_SERVED = ("txt2img", "vision", "audio", "transcribe", "multiplayer", "websearch", "tts", "savedata")
NOTHING_YET, OUT_OF_TOKENS, ENDED = -1, 0, 1  # KoboldCpp's reasons to stop


def version(gateway: Gateway) -> dict[str, Any]:
    """What KoboldCpp can do, and this server with it. `embeddings` are those of `/v1`."""
    description = gateway.engine.description
    return {
        "result": "KoboldCpp",
        "version": KOBOLDCPP,
        "protected": bool(gateway.options.keys),
        "llm": True,
        **dict.fromkeys(NOT_SERVED, False),
        "embeddings": bool(description is not None and description.pooling),
        "admin": 0,
    }


def model(gateway: Gateway) -> str:
    """Raises EngineUnavailable."""
    _, description = serving(gateway)
    return f"koboldcpp/{names(gateway.options, description)[0]}"


def context_length(gateway: Gateway) -> int:
    """Raises EngineUnavailable."""
    return serving(gateway)[1].max_total_tokens


def max_length(gateway: Gateway) -> int:
    """The longest answer in a full context. Raises EngineUnavailable."""
    most = context_length(gateway)
    return Lengths.of(None, most, most).answer


def performance(gateway: Gateway) -> dict[str, Any]:
    """Of the last answer, in seconds and tokens a second, whichever protocol it was asked in: with several HTTP
    processes, the last one of this process. `queue` and `idle` are of the whole server.
    """
    fields: dict[str, Any] = {"last_process": 0.0, "last_eval": 0.0, "last_token_count": 0, "last_input_count": 0}
    fields |= {"last_process_speed": 0.0, "last_eval_speed": 0.0, "stop_reason": NOTHING_YET}
    if (last := gateway.last_answer) is not None:
        fields["last_process"], fields["last_eval"] = round(last.prefill, 4), round(last.decode, 4)
        fields["last_token_count"], fields["last_input_count"] = last.generated_tokens, last.input_tokens
        fields["last_process_speed"] = _speed(last.input_tokens, last.prefill)
        fields["last_eval_speed"] = _speed(last.generated_tokens, last.decode)
        fields["stop_reason"] = OUT_OF_TOKENS if last.sequences[0].finish == "length" else ENDED
    return {
        **fields,
        "queue": int(gateway.metrics.load["num_requests_waiting"]),
        "idle": int(gateway.admission.active == 0),
        "uptime": round(time.time() - STARTED, 3),
        "quiet": True,
    }


def _speed(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 2) if seconds else 0.0

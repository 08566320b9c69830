"""The JSON of TGI's answers, key by key in TGI's order."""

import math
from typing import Any

from gateway.http.encoding import finite_or_none, json_bytes, json_text
from gateway.observability.request_stats import RequestStats
from gateway.request.gateway_state import Gateway
from gateway.request.output import OutputDelta, OutputProcessor, TokenText
from gateway.routes.tgi.sampling import samples
from gateway.routes.tgi.schemas import Parameters
from gateway.text.model_text import ModelText
from gateway.text.tokenizer import Tokenizer
from jaxengine.rpc import engine_pb2 as pb


class Outcome:
    """A finished sequence."""

    def __init__(self, output: OutputProcessor, deltas: list[OutputDelta], settings: Parameters) -> None:
        self.output = output
        self.tokens = [token for delta in deltas for token in delta.tokens]
        self.settings = settings
        self._prefill = [token for delta in deltas if delta.prompt is not None for token in delta.prompt.tokens]

    @property
    def mean_logprob(self) -> float:
        """best_of answers the outcome with the highest."""
        total = sum(token.logprob for token in self.tokens)
        return total / len(self.tokens) if self.tokens else -math.inf

    def details(self) -> dict[str, Any]:
        """`details` of an answer; without `best_of_sequences`."""
        tokenizer = self.output.model.tokenizer
        fields = {
            **finish_fields(self.output, self.settings),
            "prefill": [_prefill_token(tokenizer, token) for token in self._prefill],
            "tokens": [token_fields(token) for token in self.tokens],
        }
        if self.settings.top_n_tokens:
            fields["top_tokens"] = [top_tokens(tokenizer, token) for token in self.tokens]
        return fields

    def sequence(self, prompt_text: str) -> dict[str, Any]:
        """One of `best_of_sequences`."""
        return {"generated_text": prompt_text + self.output.text, **self.details()}


def finish_fields(output: OutputProcessor, settings: Parameters) -> dict[str, Any]:
    return {
        "finish_reason": str(output.finish),
        "generated_tokens": output.generated,
        "seed": output.request.sampling.seed if samples(settings) else None,
    }


def generation(outcomes: list[Outcome], prompt_text: str) -> dict[str, Any]:
    """An answer of `/generate`: the first outcome, which is the best, and the others in its details."""
    best, *others = outcomes
    answer: dict[str, Any] = {"generated_text": prompt_text + best.output.text}
    if best.settings.details or best.settings.decoder_input_details:
        answer["details"] = best.details()
        if others:
            sequences = [other.sequence(prompt_text) for other in others]
            answer["details"]["best_of_sequences"] = sequences
    return answer


def token_fields(token: TokenText) -> dict[str, Any]:
    logprob = finite_or_none(token.logprob)
    return {"id": token.id, "text": token.text, "logprob": logprob, "special": token.special}


def top_tokens(tokenizer: Tokenizer, token: TokenText) -> list[dict[str, Any]]:
    return [
        {
            "id": each.id,
            "text": tokenizer.token_text(each.id),
            "logprob": finite_or_none(each.logprob),
            "special": tokenizer.is_special(each.id),
        }
        for each in token.top
    ]


def _prefill_token(tokenizer: Tokenizer, token: pb.Token) -> dict[str, Any]:
    return {"id": token.id, "text": tokenizer.token_text(token.id), "logprob": finite_or_none(token.logprob)}


def token_event(index: int, token: TokenText) -> bytes:
    """An event in mid-stream. Written by hand: a JSON encoder takes three times as long, once per token."""
    logprob = finite_or_none(token.logprob)
    text = (
        f'data: {{"index":{index},"token":{{"id":{token.id},"text":{json_text(token.text)},'
        f'"logprob":{"null" if logprob is None else logprob},"special":{"true" if token.special else "false"}}},'
        '"generated_text":null,"details":null}\n\n'
    )
    return text.encode()


def full_event(
    index: int, token: TokenText, model: ModelText, *, generated_text: str | None, details: dict[str, Any] | None
) -> bytes:
    """An event that ends the stream or lists alternatives."""
    fields: dict[str, Any] = {"index": index, "token": token_fields(token)}
    if token.top:
        fields["top_tokens"] = top_tokens(model.tokenizer, token)
    fields |= {"generated_text": generated_text, "details": details}
    return b"data: " + json_bytes(fields) + b"\n\n"


def timing_headers(stats: RequestStats, best: Outcome) -> dict[str, str]:
    """The durations of a request's parts, in seconds in x-compute-time and in whole milliseconds otherwise, and its
    tokens, without those of sequences that best_of did not choose.
    """
    output = best.output
    per_token = stats.inference / max(1, output.generated)
    return {
        "x-compute-time": f"{stats.total:.9g}",
        "x-prompt-tokens": str(len(output.prompt_ids)),
        "x-generated-tokens": str(output.generated),
        "x-total-time": _milliseconds(stats.total),
        "x-validation-time": _milliseconds(stats.validation),
        "x-queue-time": _milliseconds(stats.queue),
        "x-inference-time": _milliseconds(stats.inference),
        "x-time-per-token": _milliseconds(per_token),
    }


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))


def compute_headers(gateway: Gateway, inputs: str) -> dict[str, str]:
    """Headers of streams and plain answers alike."""
    description = gateway.engine.description or pb.Description()
    devices = f"{description.device_count}-{description.device_kind.lower().replace(' ', '-')}"
    return {"x-compute-type": gateway.options.compute_type or devices, "x-compute-characters": str(len(inputs))}

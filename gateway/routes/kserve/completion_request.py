"""What a request gives the text model, as the internal request for a completion, `CompletionRequest` of OpenAI's."""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from gateway.errors import Kind, RequestError
from gateway.http.validation_messages import describe
from gateway.routes.kserve.text_inputs import Given
from gateway.routes.openai.schemas import CompletionRequest
from gateway.routes.openai.unsupported import first_asked
from gateway.samplers.fields import FILTERS

GUIDES = {  # TensorRT-LLM's types of what the text must match
    "json_schema": "guided_json",
    "regex": "guided_regex",
    "ebnf_grammar": "guided_grammar",
}
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p")


def completion_request(given: Given, eos_token_ids: Collection[int], adapter: str) -> CompletionRequest:
    """The completion that is asked for, of the model or its `adapter`. Raises RequestError."""
    fields = {**given.fields, "stream": given.switch("stream")}
    if fields.get("max_tokens") == 0:  # which a completion takes where it repeats the prompt
        raise RequestError.invalid("max_tokens must be at least 1 (given 0)", "max_tokens")
    if adapter:
        fields["model"] = adapter
    if type(seed := fields.get("seed")) is int and 1 << 63 <= seed < 1 << 64:
        fields["seed"] = seed - (1 << 63)  # TensorRT-LLM's has a bit more
    fields |= _beams(given) | _end(given, eos_token_ids) | _guide(given.others)
    if not given.vllm and not any(name in fields for name in SAMPLING) and not first_asked(fields, FILTERS):
        fields["temperature"] = 0.0  # as TensorRT-LLM, where vLLM's parameters are not given
    try:
        return CompletionRequest.model_validate(fields)
    except ValidationError as error:
        message, name = describe(error)
        raise RequestError(Kind.SHAPE, message, param=name) from None


def _beams(given: Given) -> dict[str, Any]:
    """TensorRT-LLM's beam search, for which sampling parameters that sample nothing mean nothing."""
    width = given.others.get("beam_width", 1)
    if type(width) is not int or width < 1:
        raise RequestError.invalid("beam_width must be a whole number of at least 1", "beam_width")
    if width == 1:
        return {}
    given.names |= {"best_of": "beam_width", "use_beam_search": "beam_width"}
    given.names.setdefault("n", "beam_width")
    neutral = {name: None for name in ("temperature", "top_k") if given.fields.get(name) == 1}
    return {**neutral, "use_beam_search": True, "best_of": width, "n": given.fields.get("n", width)}


def _end(given: Given, eos_token_ids: Collection[int]) -> dict[str, Any]:
    """TensorRT-LLM's `end_id` is the only token that ends a text; -1 is none."""
    end = given.others.get("end_id")
    if end is None or end in eos_token_ids:
        return {}
    given.names["stop_token_ids"] = "end_id"
    return {"ignore_eos": True, "stop_token_ids": [] if end == -1 else [end]}


def _guide(others: Mapping[str, Any]) -> dict[str, Any]:
    """What the text must match, in TensorRT-LLM's words."""
    kind, guide = others.get("guided_decoding_guide_type"), others.get("guided_decoding_guide")
    if kind == "json":
        return {"response_format": {"type": "json_object"}}
    if not kind and not guide:
        return {}
    if kind not in GUIDES or not guide:
        known = ", ".join(("json", *GUIDES))
        message = f"guided_decoding_guide_type must be one of {known}, and all but json need guided_decoding_guide"
        raise RequestError.invalid(message, "guided_decoding_guide_type")
    return {GUIDES[kind]: guide}

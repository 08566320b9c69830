"""Rules of `/v1` that depend on the server: its model, limits and context. The schemas check rules of the protocol."""

import re
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.config.options import ALIASES, Options
from gateway.errors import ContextExceeded, Kind, RequestError
from gateway.images.picture import ReadPrompt
from gateway.request.adapters import adapters_served, find_adapter
from gateway.request.gateway_state import Gateway
from gateway.routes.openai.common import Common, StreamOptions, refuse
from gateway.routes.openai.identity import names
from gateway.samplers.rules import unknown_id
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.limits import WHOLE_VOCABULARY

_NAME = re.compile(r"[A-Za-z0-9._:/@+-]{1,96}")
_URL = re.compile(r"https?://")


def check_limits(body: Common, options: Options, description: pb.Description) -> None:
    """Check the limits of this server. Raises RequestError."""
    limit = max(options.max_stop_sequences, body.least_stops)
    if len(body.stops) > limit:
        option = " (--max-stop-sequences)" if limit == options.max_stop_sequences else ""
        message = f"stop takes at most {limit} texts{option}, given {len(body.stops)}"
        raise RequestError.invalid(message, "stop")
    if body.constraint is not None and options.disable_grammar_support:
        param = body.constraint.param
        raise RequestError.invalid(f"{param} is not supported: --disable-grammar-support is set", param)
    refuse_unknown_ids(body.stop_token_ids or [], description.vocab_size, "stop_token_ids")
    refuse_unknown_ids([int(key) for key in body.logit_bias or ()], description.vocab_size, "logit_bias")
    refuse_unknown_ids(body.allowed_token_ids or [], description.vocab_size, "allowed_token_ids")
    refuse(unknown_id(body, description.vocab_size))
    most = most_logprobs(options, description)
    for field, asked in body.alternatives.items():
        if asked == WHOLE_VOCABULARY:  # of a server that was not started for it
            raise RequestError.invalid(f"{field} -1 asks for the whole vocabulary: needs --max-logprobs -1", field)
        if asked > most:
            raise RequestError.invalid(f"{field} must be at most {most} (--max-logprobs), given {asked}", field)
    ends = {*description.eos_token_ids, *(body.stop_token_ids or [])}
    if body.allowed_token_ids and body.min_tokens and ends.issuperset(body.drawn_token_ids):
        message = "allowed_token_ids leaves only tokens that end the text, none of which may come before min_tokens"
        raise RequestError.invalid(message, "allowed_token_ids")
    if body.use_beam_search:
        _check_width(body, description)


def _check_width(body: Common, description: pb.Description) -> None:
    """Check that a step can advance all beams of a search. Raises RequestError."""
    width, field, most = body.sequences, body.sequences_field, description.max_batch_size
    if width > most:
        message = f"{field} asks for {width} beams, the server advances at most {most} at once (--max-batch-size)"
        raise RequestError.invalid(message, field)
    own = set() if body.ignore_eos else set(description.eos_token_ids)
    ends = own.union(body.stop_token_ids or ())
    if body.allowed_token_ids and (left := len(body.drawn_token_ids - ends)) < width:
        message = f"allowed_token_ids holds {left} tokens that do not end the text, fewer than {width} beams"
        raise RequestError.invalid(message, "allowed_token_ids")
    needed, listed = width + len(ends), description.max_top_logprobs
    if needed > listed:
        field = "stop_token_ids" if width + len(own) <= listed else field
        asked = f"{field}: {width} beams and {len(ends)} tokens that end a text need {needed} logprobs of each step"
        raise RequestError.invalid(f"{asked}, the server lists {listed} (--max-logprobs)", field)


def refuse_unknown_ids(ids: list[int], vocab_size: int, field: str) -> None:
    """Raise RequestError unless every id is in `[0, vocab_size)`: the device would answer wrongly, not fail."""
    for id in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= id < vocab_size:
            shown = id if id.bit_length() <= 64 else "of too many digits"  # a number in JSON may have 4,300
            message = f"{field} holds the token id {shown}; the vocabulary is 0..{vocab_size - 1}, {vocab_size} ids"
            raise RequestError.invalid(message, field)


def most_logprobs(options: Options, description: pb.Description) -> int:
    """How many alternatives a request may list beside a token."""
    everything = options.max_logprobs == WHOLE_VOCABULARY
    return description.max_top_logprobs if everything else min(options.max_logprobs, description.max_top_logprobs)


async def check_model(name: str | None, gateway: Gateway, description: pb.Description) -> str:
    """The name of the adapter that `name` means. "" for the model itself: by no name, one of its own, `ALIASES`, or the
    URL of a server, which Hugging Face's client for JavaScript sends to it.

    Raises:
        RequestError: nothing of that name is served.
    """
    if not name or name in (*ALIASES, *names(gateway.options, description)):
        return ""
    if await find_adapter(gateway, name) is None:
        if _URL.match(name):
            return ""
        raise no_such_model(name, gateway, description)
    return name


def no_such_model(name: str, gateway: Gateway, description: pb.Description) -> RequestError:
    """The error repeats the name only if it looks like one, because clients log errors."""
    named = f"`{name}`" if _NAME.fullmatch(name) else "of that name"
    message = f"the model {named} does not exist; this server serves `{names(gateway.options, description)[0]}`"
    if gateway.engine.adapters.served:
        message += f" and its adapters {adapters_served(gateway)}"
    return RequestError(Kind.MODEL_NOT_FOUND, message, param="model")


def check_count(given: int, field: str, things: str, options: Options) -> None:
    """Check the number of prompts or chats in one request. Raises RequestError."""
    most = options.max_client_batch_size
    if given > most:
        message = f"{field} takes at most {most} {things} (--max-client-batch-size), given {given}"
        raise RequestError.invalid(message, field)


Body = TypeVar("Body", bound=Common)


def with_server_options(body: Body, gateway: Gateway) -> Body:
    """`body` with the server's options applied: defaults for fields that it leaves open, usage if it is forced, and the
    size of the vocabulary where -1 asks for all alternatives.
    """
    options, description = gateway.options, gateway.engine.description
    update: dict[str, Any] = {}
    if options.max_logprobs == WHOLE_VOCABULARY and description is not None:
        everything = [field for field, asked in body.alternatives.items() if asked == WHOLE_VOCABULARY]
        update |= dict.fromkeys(everything, description.max_top_logprobs)
    if body.return_tokens_as_token_ids is None:
        update["return_tokens_as_token_ids"] = options.return_tokens_as_token_ids
    if options.enable_force_include_usage and body.stream:
        update["stream_options"] = StreamOptions(include_usage=True, continuous_usage_stats=True)
    return body.model_copy(update=update)


@dataclass(frozen=True)
class Context:
    """The room that a sequence has.

    tokens: of the prompt and the answer.
    max_input_tokens: of them, for the prompt.
    limit: what allows no more, for a client.
    """

    tokens: int
    max_input_tokens: int
    limit: str


def context(body: Common, gateway: Gateway, description: pb.Description) -> Context:
    """That of the model, unless so many beams of that length would not fit into the cache."""
    tokens, most = description.max_total_tokens, gateway.max_input_tokens
    limit = f"This model's maximum context length is {tokens} tokens"
    room = _room_of_beams(body.sequences, description) if body.use_beam_search else tokens
    if room >= tokens:
        return Context(tokens, most, limit)
    limit = f"{body.sequences} beams have room for {room} tokens each (--max-batch-total-tokens)"
    return Context(room, max(0, min(most, room - 1)), limit)


def _room_of_beams(width: int, description: pb.Description) -> int:
    """Tokens that each of `width` beams may have, if all have so many. Where an encoder reads the prompt, prompt and
    answer have pages of their own, of which one more may be begun.
    """
    pages = description.max_batch_total_tokens // (width * description.page_size)
    return max(0, pages - description.HasField("decoder_start_token_id")) * description.page_size


def truncated(prompt: ReadPrompt, body: Common, context: Context, wanted: int | None) -> ReadPrompt:
    """As much of `prompt` as `truncate_prompt_tokens` leaves; -1 leaves what fits beside the `wanted` new tokens, as
    long as these fit at all. Raises RequestError if that cuts through an image.
    """
    if body.truncate_prompt_tokens is None or body.cut is None:
        return prompt
    keep = body.truncate_prompt_tokens
    if keep == -1:
        room = context.tokens - (wanted or 0)
        keep = min(context.max_input_tokens, room) if room > 0 else context.max_input_tokens
    return prompt.truncated(keep, body.cut, "truncate_prompt_tokens")


def new_tokens(
    prompt: list[int],
    wanted: int | None,
    context: Context,
    field: str,
    *,
    otherwise: int | None = None,
    name: str = "max_tokens",
) -> int:
    """How many tokens to generate: as many as `wanted`, which the field `name` says; if it is left open, `otherwise`,
    or else as many as there is room for.

    Raises:
        RequestError: the prompt is empty or too long, or prompt and wanted tokens exceed the context.
    """
    length, most = len(prompt), context.max_input_tokens
    if not prompt:
        raise RequestError.invalid(f"{field} holds no tokens", field)
    if length > most:
        message = f"{context.limit}, at most {most} of them for the prompt, but {field} has {length} tokens"
        raise ContextExceeded(message, field, prompt=length, wanted=0, most=most)
    if wanted is not None and length + wanted > context.tokens:
        asked = f"{length + wanted} were requested: {length} in {field} and {name} {wanted}"
        message = f"{context.limit}, but {asked}"
        raise ContextExceeded(message, field, prompt=length, wanted=wanted, most=context.tokens)
    room = context.tokens - length
    return wanted or min(room, otherwise or room)

"""Rules of `/v1` that depend on the server: its model, limits and context. Those of the protocol are in the schemas."""

import re

from gateway.errors import Kind, RequestError
from gateway.openai.common import Common
from gateway.options import Options
from gateway.tokenizer import refuse_unknown_ids
from jaxengine.rpc import engine_pb2 as pb

_NAME = re.compile(r"[A-Za-z0-9._:/@+-]{1,96}")
TGI = "tgi"  # what TGI's documentation and clients write
ALIASES = (TGI, "dummy")  # and what huggingface_hub sends to a given URL


def check_limits(body: Common, options: Options, description: pb.Description) -> None:
    """Limits that depend on the server rather than the protocol. Raises RequestError."""
    if len(body.stops) > options.max_stop_sequences:
        limit = options.max_stop_sequences
        message = f"stop takes at most {limit} texts (--max-stop-sequences), given {len(body.stops)}"
        raise RequestError.invalid(message, "stop")
    refuse_unknown_ids(body.stop_token_ids or [], description.vocab_size, "stop_token_ids")
    refuse_unknown_ids([int(key) for key in body.logit_bias or ()], description.vocab_size, "logit_bias")
    refuse_unknown_ids(body.allowed_token_ids or [], description.vocab_size, "allowed_token_ids")
    ends = {*description.eos_token_ids, *(body.stop_token_ids or [])}
    if body.allowed_token_ids and body.min_tokens and ends.issuperset(body.allowed_token_ids):
        message = "allowed_token_ids holds only tokens that end the text, none of which may come before min_tokens"
        raise RequestError.invalid(message, "allowed_token_ids")


def check_model(name: str | None, description: pb.Description) -> None:
    """No name, the served model's, or one of TGI's customs. Raises RequestError."""
    if name and name not in (*ALIASES, description.model_id):
        raise no_such_model(name, description)


def no_such_model(name: str, description: pb.Description) -> RequestError:
    """The name is repeated only where it looks like one: what a client sends may end in somebody's log."""
    named = f"`{name}`" if _NAME.fullmatch(name) else "of that name"
    message = f"the model {named} does not exist; this server serves `{description.model_id}`"
    return RequestError(Kind.MODEL_NOT_FOUND, message, param="model")


def top_logprobs(asked: int | None, field: str, description: pb.Description) -> int:
    """How many alternatives to report per token. Raises RequestError above what the engine can."""
    if (asked or 0) > description.max_top_logprobs:
        raise RequestError.invalid(f"{field} must be at most {description.max_top_logprobs}, given {asked}", field)
    return asked or 0


def truncated(prompt: list[int], body: Common, max_input_tokens: int) -> list[int]:
    """The end of `prompt` that `truncate_prompt_tokens` asks for."""
    if body.truncate_prompt_tokens is None:
        return prompt
    keep = max_input_tokens if body.truncate_prompt_tokens == -1 else body.truncate_prompt_tokens
    return prompt[-keep:]


def new_tokens(
    prompt: list[int],
    wanted: int | None,
    max_input_tokens: int,
    max_total_tokens: int,
    field: str,
    *,
    otherwise: int | None = None,
    name: str = "max_tokens",
) -> int:
    """How many tokens may be generated: what is wanted, in the field `name`; where that is left open
    `otherwise`, or all there is room for.

    Raises:
        RequestError: the prompt is empty or too long, or prompt and wanted tokens exceed the context.
    """
    length = len(prompt)
    if not prompt:
        raise RequestError.invalid(f"{field} holds no tokens", field)
    context = f"This model's maximum context length is {max_total_tokens} tokens"
    if length > max_input_tokens:
        message = f"{context}, at most {max_input_tokens} of them for the prompt, but {field} has {length} tokens"
        raise RequestError(Kind.CONTEXT_LENGTH, message, param=field)
    if wanted is not None and length + wanted > max_total_tokens:
        message = f"{context}, but {length + wanted} were requested: {length} in {field} and {name} {wanted}"
        raise RequestError(Kind.CONTEXT_LENGTH, message, param=field)
    room = max_total_tokens - length
    return wanted or min(room, otherwise or room)

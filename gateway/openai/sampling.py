"""What a `/v1` request asks of the engine, as one `pb.Generate` per choice.

What the request leaves open is the model author's recommendation (generation_config.json), then OpenAI's default.
Temperature 0 and top_p 0 both mean greedy.
"""

import re
import secrets

from gateway.errors import Kind, RequestError
from gateway.generation import Manner
from gateway.openai.common import Common
from gateway.options import Options
from gateway.sampling import GREEDY_TEMPERATURE
from gateway.text import TextModel
from gateway.tokenizer import refuse_unknown_ids
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.limits import MAX_BAD_WORD, MAX_BAD_WORDS

_NAME = re.compile(r"[A-Za-z0-9._:/@+-]{1,96}")
ALIASES = ("tgi", "dummy")  # what TGI's documentation writes, and what huggingface_hub sends to a given URL


def check_limits(body: Common, options: Options, description: pb.Description) -> None:
    """Limits that depend on the server rather than the protocol. Raises RequestError."""
    if len(body.stops) > options.max_stop_sequences:
        limit = options.max_stop_sequences
        raise RequestError.invalid(f"stop takes at most {limit} texts, given {len(body.stops)}", "stop")
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
) -> int:
    """How many tokens may be generated: what is wanted; where that is left open `otherwise`, or all there is room for.

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
        message = f"{context}, but {length + wanted} were requested: {length} in {field} and max_tokens {wanted}"
        raise RequestError(Kind.CONTEXT_LENGTH, message, param=field)
    room = max_total_tokens - length
    return wanted or min(room, otherwise or room)


def generate_requests(
    body: Common,
    prompt: list[int],
    limit: int,
    model: TextModel,
    *,
    top_logprobs: int,
    echo_logprobs: bool = False,
) -> list[pb.Generate]:
    """One engine request per choice. A given seed counts up over the choices, or they would all be the same."""
    if (body.min_tokens or 0) > limit:
        raise RequestError.invalid(
            f"min_tokens is {body.min_tokens}, but at most {limit} can be generated", "min_tokens"
        )
    field = "prompt_logprobs" if body.prompt_logprobs is not None else "echo" if echo_logprobs else ""
    if field and not model.continues:
        message = f"{field} asks for the logprobs of a prompt, but this model's encoder reads it: it has none"
        raise RequestError.invalid(message, field)
    seed = secrets.randbits(63) if body.seed in (None, -1) else body.seed or 0
    words = _bad_words(body.bad_words or [], model)
    requests = []
    for number in range(body.sequences):
        sampling = _sampling(body, model.defaults)
        sampling.bad_words.extend(words)
        sampling.seed = (seed + number) % 2**64
        sampling.top_logprobs = max(top_logprobs, body.prompt_logprobs or 0)
        sampling.prompt_logprobs = echo_logprobs or body.prompt_logprobs is not None
        requests.append(
            pb.Generate(
                prompt=prompt,
                sampling=sampling,
                max_new_tokens=limit,
                min_new_tokens=body.min_tokens or 0,
                stop_token_ids=body.stop_token_ids or [],
                ignore_eos=bool(body.ignore_eos),
                cache_salt=(body.cache_salt or "").encode(),
                priority=body.priority or 0,
            )
        )
    return requests


def manner(body: Common) -> Manner:
    """What the request wants of the text."""
    return Manner(
        keep_stop=bool(body.include_stop_str_in_output),
        show_end=bool(body.include_stop_str_in_output),
        skip_special=body.skip_special_tokens is not False,
        length_first=False,
    )


def _sampling(body: Common, defaults: dict[str, float]) -> pb.Sampling:
    def chosen(name: str, otherwise: float) -> float:
        given = getattr(body, name)
        return float(defaults.get(name, otherwise) if given is None else given)

    temperature, top_p = chosen("temperature", 1.0), chosen("top_p", 1.0)
    greedy = temperature < GREEDY_TEMPERATURE or top_p == 0.0
    return pb.Sampling(
        temperature=0.0 if greedy else temperature,
        top_p=1.0 if greedy else top_p,
        top_k=max(0, int(chosen("top_k", 0))),
        min_p=chosen("min_p", 0.0),
        typical_p=chosen("typical_p", 1.0),
        repetition_penalty=chosen("repetition_penalty", 1.0),
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        logit_bias=_biases(body),
        only_biased=body.allowed_token_ids is not None,
    )


def _bad_words(words: list[str], model: TextModel) -> list[pb.TokenIds]:
    """Each word as its ids at the start of a text and behind a space, where those differ. Raises RequestError."""
    spellings = [spelling for word in words for spelling in (word, " " + word.lstrip())]
    found = dict.fromkeys(map(tuple, model.tokenizer.encode_each(spellings, add_special_tokens=False)))
    if len(found) > MAX_BAD_WORDS:
        message = f"bad_words make {len(found)} sequences of tokens, at most {MAX_BAD_WORDS}"
        raise RequestError.invalid(message, "bad_words")
    for ids in found:
        if not 1 <= len(ids) <= MAX_BAD_WORD:
            message = f"each of bad_words must be 1 to {MAX_BAD_WORD} tokens, one has {len(ids)}"
            raise RequestError.invalid(message, "bad_words")
    return [pb.TokenIds(ids=ids) for ids in found]


def _biases(body: Common) -> dict[int, float]:
    given = {int(key): float(value) for key, value in (body.logit_bias or {}).items()}
    if body.allowed_token_ids is None:
        return given
    return {id: given.get(id, 0.0) for id in body.allowed_token_ids}

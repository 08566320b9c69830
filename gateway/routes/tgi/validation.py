"""TGI's rules for a request, in TGI's order.

Each rule has its own message, with the given value and the limit. Rules that need no tokens are checked first and cost
nothing; then the server admits the request, and only then is its text tokenised.
"""

from dataclasses import dataclass

from gateway.config.options import Options
from gateway.errors import RequestError
from gateway.images.picture import ReadPrompt
from gateway.request.adapters import adapters_served, find_adapter
from gateway.request.gateway_state import Gateway
from gateway.request.written_images import read_written
from gateway.routes.tgi.schemas import GenerateRequest, Parameters
from gateway.samplers.rules import first_problem, unknown_id
from gateway.text.model_text import ModelText, Side
from gateway.text.sampling_defaults import MAX_SCALE, MIN_SCALE
from gateway.text.stop_strings import MAX_STOP_CHARACTERS
from jaxengine.options.adapters import MAX_NAME
from jaxengine.rpc import engine_pb2 as pb

RESERVED_NEW_TOKENS = 1024  # TGI checks at most so many new tokens against the context, whose end it stops at


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of this server that requests are checked against."""

    max_best_of: int
    max_stop_sequences: int
    max_top_n_tokens: int
    max_input_tokens: int
    max_total_tokens: int
    vocab_size: int

    @classmethod
    def of(cls, options: Options, max_input_tokens: int, description: pb.Description) -> "Limits":
        return cls(
            max_best_of=options.max_best_of,
            max_stop_sequences=options.max_stop_sequences,
            max_top_n_tokens=min(options.max_top_n_tokens, description.max_top_logprobs),
            max_input_tokens=max_input_tokens,
            max_total_tokens=description.max_total_tokens,
            vocab_size=description.vocab_size,
        )


def check_parameters(request: GenerateRequest, limits: Limits, *, stream: bool) -> None:
    """Check every rule that needs no tokens. Raises RequestError for the first one that is broken."""
    settings = request.settings
    _check_best_of(settings, limits, stream=stream)
    _check_sampling(settings, limits)
    _check_output(settings, limits)
    _require(bool(request.inputs), "inputs", "`inputs` cannot be empty")
    given = settings.truncate
    _require(
        given is None or 0 < given <= limits.max_input_tokens,
        "truncate",
        f"`truncate` must be strictly positive and at most {limits.max_input_tokens}. Given: {given}",
    )


def _require(condition: bool, field: str, message: str) -> None:
    if not condition:
        raise RequestError.invalid(message, field)


def _check_best_of(settings: Parameters, limits: Limits, *, stream: bool) -> None:
    best_of = settings.best_of
    if stream:
        _require(best_of in (None, 1), "best_of", f"`best_of` != 1 is not supported when streaming. Given: {best_of}")
        _require(
            not settings.decoder_input_details,
            "decoder_input_details",
            "`decoder_input_details` is not supported when streaming",
        )
    if best_of is None or best_of <= 1:
        return
    _require(limits.max_best_of > 1, "best_of", f"`best_of` != 1 is not allowed by this server. Given: {best_of}")
    _require(
        best_of <= limits.max_best_of, "best_of", f"`best_of` must be > 0 and <= {limits.max_best_of}. Given: {best_of}"
    )
    chosen = (settings.temperature, settings.top_k, settings.top_p, settings.typical_p)
    samples = settings.do_sample or settings.filters or any(value is not None for value in chosen)
    _require(samples, "best_of", f"you must use sampling when `best_of` is > 1. Given: {best_of}")


def _check_sampling(settings: Parameters, limits: Limits) -> None:
    for name in ("temperature", "repetition_penalty"):
        _check_scale(name, getattr(settings, name))
    penalty = settings.frequency_penalty
    _require(
        penalty is None or -2.0 <= penalty <= 2.0,
        "frequency_penalty",
        f"`frequency_penalty` must be >= -2.0 and <= 2.0. Given: {penalty}",
    )
    for name in ("top_p", "typical_p"):
        share = getattr(settings, name)
        _require(share is None or 0.0 < share < 1.0, name, f"`{name}` must be > 0.0 and < 1.0. Given: {share}")
    top_k = settings.top_k
    _require(top_k is None or top_k > 0, "top_k", f"`top_k` must be strictly positive. Given: {top_k}")
    if problem := first_problem(settings) or unknown_id(settings, limits.vocab_size):
        given = f". Given: {problem.shown}" if problem.shown else ""
        raise RequestError.invalid(f"`{problem.field}` {problem.text}{given}", problem.field)


def _check_scale(name: str, value: float | None) -> None:
    _require(value is None or value > 0.0, name, f"`{name}` must be strictly positive. Given: {value}")
    _require(value is None or value <= MAX_SCALE, name, f"`{name}` must be <= {MAX_SCALE}. Given: {value}")
    if name == "repetition_penalty":
        _require(value is None or value >= MIN_SCALE, name, f"`{name}` must be >= {MIN_SCALE}. Given: {value}")


def _check_output(settings: Parameters, limits: Limits) -> None:
    new = settings.max_new_tokens
    _require(new is None or new > 0, "max_new_tokens", f"`max_new_tokens` must be strictly positive. Given: {new}")
    count = len(settings.stop)
    _require(
        count <= limits.max_stop_sequences,
        "stop",
        f"`stop` supports up to {limits.max_stop_sequences} stop sequences. Given: {count}",
    )
    for stop in settings.stop:
        _require(
            0 < len(stop) <= MAX_STOP_CHARACTERS,
            "stop",
            f"each of `stop` must have 1 to {MAX_STOP_CHARACTERS} characters. Given: {len(stop)}",
        )
    _require(
        settings.seed is None or (settings.best_of or 1) <= 1,
        "seed",
        f"`seed` must not be set when `best_of` > 1. Given: {settings.best_of}",
    )
    top_n = settings.top_n_tokens
    _require(
        top_n is None or top_n <= limits.max_top_n_tokens,
        "top_n_tokens",
        f"`top_n_tokens` must be >= 0 and <= {limits.max_top_n_tokens}. Given: {top_n}",
    )


async def check_adapter(settings: Parameters, gateway: Gateway) -> str:
    """The name of the adapter that answers; "" for the model itself. Raises RequestError if it is not served."""
    name = settings.adapter_id or ""
    if name and await find_adapter(gateway, name) is None:
        shown = name if len(name) <= MAX_NAME and name.isprintable() else "what is no name"
        message = f"`adapter_id` is not one of this server's adapters: {adapters_served(gateway)}. Given: {shown}"
        raise RequestError.invalid(message, "adapter_id")
    return name


async def tokenize(
    gateway: Gateway, request: GenerateRequest, model: ModelText, limits: Limits
) -> tuple[ReadPrompt, int]:
    """The prompt, truncated to its end where asked, and how many new tokens it may get.

    Raises:
        RequestError: prompt and new tokens, or the prompt alone, exceed a limit.
    """
    settings = request.settings
    cut: Side | None = None if settings.truncate is None else "left"
    prompt = await read_written(gateway, model, request.inputs, field="inputs", cut=cut)
    if settings.truncate is not None:
        prompt = prompt.truncated(settings.truncate, "left", "truncate")
    length, total = len(prompt.ids), limits.max_total_tokens
    _require(length > 0, "inputs", "`inputs` holds no tokens")
    wanted = settings.max_new_tokens
    reserved = min(wanted, RESERVED_NEW_TOKENS) if wanted is not None else 0
    _require(
        length + reserved <= total,
        "inputs",
        f"`inputs` tokens + `max_new_tokens` must be <= {total}. "
        f"Given: {length} `inputs` tokens and {wanted or 0} `max_new_tokens`",
    )
    _require(
        length <= limits.max_input_tokens,
        "inputs",
        f"`inputs` must have at most {limits.max_input_tokens} tokens. Given: {length}",
    )
    room = total - length
    return prompt, room if wanted is None else min(wanted, room)

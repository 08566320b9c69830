"""What a request of KoboldCpp's asks for, as the internal request for a completion, `CompletionRequest` of OpenAI's."""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar

from pydantic import Field, ValidationError

from gateway.errors import Kind, RequestError
from gateway.http.strict_json import NotStrictJson, strict_json
from gateway.http.validation_messages import describe
from gateway.routes.kobold.schemas import MAX_STOPS, SAMPLER_ORDER, GenerateBody
from gateway.routes.openai.schemas import CompletionRequest
from gateway.text.sampling_defaults import MAX_SCALE
from jaxengine.rpc.limits import MAX_LOOK_BACK

NAMES = {  # what a completion calls a field, and what KoboldCpp does
    "max_tokens": "max_length",
    "repetition_penalty": "rep_pen",
    "typical_p": "typical",
    "seed": "sampler_seed",
    "stop": "stop_sequence",
    "bad_words": "banned_tokens",
    "ignore_eos": "bypass_eos",
    "json_schema": "grammar",
}
SAME = (  # in both
    *("n", "temperature", "min_p", "top_a", "tfs", "nsigma", "rep_pen_slope", "presence_penalty"),
    *("mirostat", "mirostat_tau", "mirostat_eta", "dynatemp_range", "dynatemp_exponent"),
    *("smoothing_factor", "smoothing_curve", "xtc_threshold", "xtc_probability"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_sequence_breakers"),
)
# What a model's author may recommend, and KoboldCpp has no field for.
OFF = dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size"), 0)
MAX_BIAS = 100
RANDOM = 0xFFFFFFFF  # as a seed, like those below 1
Bounded = Annotated[float, Field(ge=-MAX_SCALE, le=MAX_SCALE)]


class KoboldCompletion(CompletionRequest):
    """A completion whose temperature and presence penalty may be higher, and which may have more stop sequences."""

    least_stops: ClassVar[int] = MAX_STOPS  # SillyTavern sends dozens: a name of every person in a chat

    temperature: Annotated[float, Field(ge=0, le=MAX_SCALE)] | None = None
    presence_penalty: Bounded | None = None


def completion_request(body: GenerateBody, new_tokens: int, eos_token_ids: Collection[int]) -> KoboldCompletion:
    """The completion that is asked for, whose prompt is not cut yet. Raises RequestError, with a completion's names of
    fields.
    """
    fields = {name: getattr(body, name) for name in SAME} | OFF | _clamped(body) | _end(body, eos_token_ids)
    fields |= {
        "prompt": body.prompt,
        "max_tokens": new_tokens,
        "sampler_order": body.sampler_order or [*SAMPLER_ORDER],
        "seed": None if body.sampler_seed < 1 or body.sampler_seed == RANDOM else body.sampler_seed,
        "bad_words": body.banned,
        "skip_special_tokens": not body.render_special,
        **_grammar(body.grammar),
    }
    try:
        return KoboldCompletion.model_validate(fields)
    except ValidationError as error:
        message, name = describe(error)
        raise RequestError(Kind.SHAPE, message, param=name) from None


def _clamped(body: GenerateBody) -> dict[str, Any]:
    """What KoboldCpp clamps, rather than refuse it."""
    return {
        "top_k": max(0, body.top_k),
        "top_p": min(1.0, body.top_p),
        "typical_p": min(1.0, body.typical),
        "repetition_penalty": body.penalty,
        "rep_pen_range": max(1, min(body.rep_pen_range, MAX_LOOK_BACK)),
        "dry_penalty_last_n": max(0, min(body.dry_penalty_last_n, MAX_LOOK_BACK)),
        "logit_bias": {id: max(-MAX_BIAS, min(bias, MAX_BIAS)) for id, bias in body.logit_bias.items()},
    }


def _end(body: GenerateBody, eos_token_ids: Collection[int]) -> dict[str, Any]:
    """What ends the text, and what is never drawn."""
    bans = {*(body.custom_token_bans or ()), *(eos_token_ids if body.bans_end else ())}
    return {
        "stop": body.stops,
        "include_stop_str_in_output": not body.trim_stop,
        "ignore_eos": body.bypass_eos,
        "custom_token_bans": sorted(bans),
    }


def _grammar(grammar: str) -> dict[str, Any]:
    """GBNF, or a JSON schema, for which KoboldCpp makes the GBNF."""
    if grammar.lstrip().startswith("{"):
        try:
            return {"json_schema": strict_json(grammar)}
        except NotStrictJson as error:
            raise RequestError.invalid(f"json_schema {error}", "grammar") from None
    return {"grammar": grammar}

"""The fields that both generating routes of `/v1` accept. `null` means absent everywhere.

Ranges that need no tokens are checked here, so that every refusal names its field. Known fields that are not served,
and hints, are in `unsupported.py`, what does not go with a beam search in `beam_search.py`. Unknown fields are ignored,
because OpenAI's clients grow faster than servers.
"""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from gateway.errors import RequestError
from gateway.http.body import StrictModel
from gateway.routes.openai import beam_search
from gateway.routes.openai.constraints import ConstraintFields
from gateway.routes.openai.identity import SAFE_ID
from gateway.routes.openai.unsupported import refuse_unsupported
from gateway.samplers.fields import SamplerFields
from gateway.samplers.rules import Problem, first_problem
from gateway.text.model_text import Side
from gateway.text.sampling_defaults import MAX_SCALE, MIN_SCALE
from gateway.text.stop_strings import MAX_STOP_CHARACTERS
from jaxengine.rpc.limits import (
    MAX_ALTERNATIVES,
    MAX_BAD_WORDS,
    MAX_LENGTH_PENALTY,
    MAX_LOGIT_BIAS,
    MAX_STOP_TOKEN_IDS,
    WHOLE_VOCABULARY,
)

MAX_CHOICES = 8
MAX_BAD_WORD_CHARACTERS = 64
MAX_BIAS = 100
PLAIN_ID = re.compile(r"0|[1-9][0-9]{0,9}")  # "05" beside "5" would be two biases of one token
WORD = re.compile(r"[A-Za-z0-9_.+-]{1,24}")
MAX_WORDS = 8  # of a client's that one refusal repeats

Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
MANY = 200  # alternatives

Alternatives = Annotated[int, Field(ge=WHOLE_VOCABULARY, le=2**31 - 1)]
Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARACTERS)]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class StreamOptions(StrictModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Common(ConstraintFields, SamplerFields):
    """Fields of both generating routes, besides those that constrain the text and those of further samplers."""

    model_config = ConfigDict(extra="allow")  # so that unsupported fields can be told from absent ones

    least_stops: ClassVar[int] = 0  # as many stop strings are taken, whatever `--max-stop-sequences` is

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_SCALE, le=MAX_SCALE)] | None = None
    logit_bias: dict[str, Any] | None = Field(None, max_length=MAX_LOGIT_BIAS)
    allowed_token_ids: list[Count] | None = Field(None, min_length=1, max_length=MAX_LOGIT_BIAS)
    bad_words: list[BadWord] | None = Field(None, max_length=MAX_BAD_WORDS)
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, Field(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopText | Annotated[list[StopText], Field(fail_fast=True)] | None = None
    stop_token_ids: list[Count] | None = Field(None, max_length=MAX_STOP_TOKEN_IDS)
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    truncation_side: Side | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: str | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Int32 | None = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def sequences(self) -> int:
        """How many sequences, or beams, are generated: more than `choices` if a completion answers the best of them."""
        return self.choices

    @property
    def sequences_field(self) -> str:
        """The field that says how many."""
        return "n"

    @property
    def alternatives(self) -> dict[str, int]:
        """How many alternatives to list beside each token, by the field that asks for them."""
        return {"prompt_logprobs": self.prompt_logprobs or 0}

    @property
    def lists_logprobs(self) -> bool:
        """Whether a whole answer lists logprobs of any kind."""
        return self.prompt_logprobs is not None

    def lists_many(self, tokens: int) -> bool:
        """Whether it takes milliseconds to encode the alternatives of so many tokens."""
        return tokens * max(self.alternatives.values()) > MANY

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def drawn_token_ids(self) -> set[int]:
        """What is left of `allowed_token_ids` without the bans."""
        return {*(self.allowed_token_ids or ())} - {*(self.custom_token_bans or ())}

    @property
    def cut(self) -> Side | None:
        """The side at which a prompt that is too long loses tokens; None if it may not lose any."""
        return None if self.truncate_prompt_tokens is None else self.truncation_side or "left"

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @field_validator("logit_bias")
    @classmethod
    def _biases_tokens(cls, biases: dict[str, Any] | None) -> dict[str, float] | None:
        if wrong := [key for key in biases or () if not PLAIN_ID.fullmatch(key)]:
            named = ", ".join(key for key in wrong[:MAX_WORDS] if WORD.fullmatch(key))
            raise ValueError(f"every key must be a token id in plain digits{named and f', not {named}'}")
        for key, bias in (biases or {}).items():
            if type(bias) not in (int, float) or not -MAX_BIAS <= bias <= MAX_BIAS:
                raise ValueError(f"the bias of token {key} must be a number in {-MAX_BIAS}..{MAX_BIAS}")
        return biases

    @field_validator("request_id")
    @classmethod
    def _is_safe_to_repeat(cls, value: str | None) -> str | None:
        if value is not None and not SAFE_ID.fullmatch(value):
            raise ValueError("must be 1 to 64 letters, digits, dots, underscores or hyphens")
        return value

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _keeps_something(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("must be at least 1, or -1 for as many as fit")
        return value

    def _repeats(self, name: str, value: Any) -> bool:
        """Whether `name` is llama.cpp's for a field that has the same value: SillyTavern sends both."""
        return name == "n_predict" and value == getattr(self, "max_tokens", None)

    @model_validator(mode="after")
    def _is_consistent(self) -> "Common":
        if self.stream_options is not None and not self.stream:
            raise RequestError.invalid("stream_options is only allowed when stream is true", "stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError.invalid("prompt_logprobs is not supported when streaming", "prompt_logprobs")
        if self.bad_words and self.allowed_token_ids is not None:
            raise RequestError.invalid("bad_words and allowed_token_ids exclude each other", "bad_words")
        if self.ignore_eos and self.constraint is not None:
            message = f"ignore_eos is not supported with {self.constraint.param}, which says where the text ends"
            raise RequestError.invalid(message, "ignore_eos")
        refuse(first_problem(self))
        beam_search.check_fields(dict(self), self.constraint.param if self.constraint is not None else None)
        extra = self.model_extra or {}
        refuse_unsupported({name: value for name, value in extra.items() if not self._repeats(name, value)})
        return self


def refuse(problem: Problem | None) -> None:
    """Raise RequestError if there is a `problem`."""
    if problem is not None:
        given = f" (given {problem.shown})" if problem.shown else ""
        raise RequestError.invalid(f"{problem.field} {problem.text}{given}", problem.field)

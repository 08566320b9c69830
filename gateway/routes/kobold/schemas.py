"""The bodies of the generating routes, with KoboldCpp's names and defaults. `null` means absent.

Samplers and their ranges are checked where they are made a completion's, in `completion_request.py`.
"""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from gateway.http.body import StrictModel
from gateway.images.picture import Source
from gateway.routes.kobold.lengths import MIN_CONTEXT
from gateway.routes.kobold.numbers import Number, Whole, at_least
from gateway.routes.kobold.unsupported import UNSUPPORTED
from gateway.routes.openai.unsupported import refuse_unsupported
from gateway.samplers.fields import MAX_ORDER
from gateway.samplers.texts import Bans, Breakers
from jaxengine.rpc.limits import MAX_BAD_WORDS

MAX_STOPS, MAX_BIASES = 256, 512  # as KoboldCpp
MAX_KEY_CHARACTERS = 128
MAX_IMAGES = 64
ANSWER = 768  # tokens, where the client does not say
SAMPLER_ORDER = (6, 0, 1, 3, 4, 2, 5)

Key = Annotated[str, Field(max_length=MAX_KEY_CHARACTERS)]
Texts = Annotated[list[str | None], Field(fail_fast=True)]
Stops = Annotated[Texts, Field(max_length=MAX_STOPS)]
Words = Annotated[Texts, Field(max_length=MAX_BAD_WORDS)]


def _nullable(schema: dict[str, Any]) -> None:
    """Document that every field that may be absent may be null."""
    for name, field in schema["properties"].items():
        if name not in schema["required"]:
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}]}


class NamedBody(StrictModel):
    """A body that says which generation is meant."""

    genkey: Key | None = None


class GenerateBody(StrictModel):
    """Unknown fields are ignored, but for those that KoboldCpp knows and this server cannot serve."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_nullable)

    prompt: str
    memory: str = ""  # stands in front of the prompt, and stays when that is cut
    max_context_length: Annotated[Whole, at_least(MIN_CONTEXT)] | None = None
    max_length: Annotated[Whole, at_least(1)] = ANSWER
    n: Whole = 1
    temperature: Number = 0.75
    top_k: Whole = 100
    top_p: Number = 0.92
    top_a: Number = 0.0
    min_p: Number = 0.0
    typical: Number = 1.0
    tfs: Number = 1.0
    nsigma: Number = 0.0
    rep_pen: Number | None = None
    repetition_penalty: Number | None = None  # other names of it, as the next
    repeat_penalty: Number | None = None
    rep_pen_range: Whole = 320
    rep_pen_slope: Number = 1.0
    presence_penalty: Number = 0.0
    mirostat: Whole = 0
    mirostat_tau: Number = 5.0
    mirostat_eta: Number = 0.1
    dynatemp_range: Number = 0.0
    dynatemp_exponent: Number = 1.0
    smoothing_factor: Number = 0.0
    smoothing_curve: Number = 1.0
    xtc_threshold: Number = 0.2
    xtc_probability: Number = 0.0
    dry_multiplier: Number = 0.0
    dry_base: Number = 1.75
    dry_allowed_length: Whole = 2
    dry_penalty_last_n: Whole = 320
    dry_sequence_breakers: Breakers = Field(default_factory=list)
    sampler_order: Annotated[list[Whole], Field(max_length=MAX_ORDER)] = Field(default_factory=lambda: [*SAMPLER_ORDER])
    sampler_seed: Whole = -1
    stop_sequence: Stops = Field(default_factory=list)
    trim_stop: bool = True
    ban_eos_token: bool | None = None
    use_default_badwordsids: bool = False  # an older name of it
    bypass_eos: bool = False
    render_special: bool = False
    logit_bias: dict[str, Number] = Field(default_factory=dict, max_length=MAX_BIASES)
    banned_tokens: Words | None = None
    banned_strings: Words | None = None
    custom_token_bans: Bans = None
    grammar: str = ""
    images: Annotated[list[str], Field(max_length=MAX_IMAGES, fail_fast=True)] = Field(default_factory=list)  # base64
    genkey: Key = ""

    @property
    def sources(self) -> list[Source]:
        """The images: base64, or `data:` URLs."""
        return [Source.of_base64(each, f"images[{number}]") for number, each in enumerate(self.images)]

    @property
    def stops(self) -> list[str]:
        return [text for text in self.stop_sequence if text]

    @property
    def penalty(self) -> float:
        """That of repetition: of its names, the one that asks for most, as in KoboldCpp."""
        given = (self.rep_pen, self.repetition_penalty, self.repeat_penalty)
        return max((value for value in given if value is not None), default=1.0)

    @property
    def banned(self) -> list[str]:
        """What the text may not hold, by either name."""
        return [text for text in (*(self.banned_tokens or ()), *(self.banned_strings or ())) if text]

    @property
    def bans_end(self) -> bool:
        """Whether the text may not end by itself."""
        return self.use_default_badwordsids if self.ban_eos_token is None else self.ban_eos_token

    @model_validator(mode="before")
    @classmethod
    def _leaves_out_nulls(cls, body: Any) -> Any:
        return {name: value for name, value in body.items() if value is not None} if isinstance(body, dict) else body

    @model_validator(mode="after")
    def _is_served(self) -> "GenerateBody":
        refuse_unsupported(self.model_extra or {}, UNSUPPORTED, {})
        return self

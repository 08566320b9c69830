"""The samplers of Aphrodite, KoboldCpp and llama.cpp as fields of a request, each by the names it has there.

Only types are checked here, and texts read that stand for lists; `rules.py` checks the rest. `null` means absent, and
every field's neutral value means what its absence means. `jaxengine/rpc/engine.proto` says what each sampler does.
"""

import re
from typing import Annotated, Any

from pydantic import Field, field_validator

from gateway.http.body import StrictModel
from gateway.http.strict_json import NotStrictJson, strict_json
from gateway.samplers.ranges import Range
from gateway.text.sampling_defaults import MAX_SCALE, MIN_SCALE
from jaxengine.rpc.limits import MAX_LOOK_BACK, MAX_REPEAT

MAX_BREAKERS, MAX_BREAKER_CHARACTERS = 64, 64
MAX_BREAKER_IDS = 1024
MAX_BANS = 1024  # in the request; the engine takes as many as biases
MAX_ORDER = 64  # names of samplers

ID = re.compile("[0-9]{1,9}")

Share = Annotated[float | None, Range(0, 1)]
Switch = Annotated[int | None, Range(0, 2)]
Sigmas = Annotated[float | None, Range(-1, 1000)]
Amount = Annotated[float | None, Range(0, 100)]
LookBack = Annotated[int | None, Range(-1, MAX_LOOK_BACK)]
Id = Annotated[int, Field(ge=0, le=2**31 - 1)]

# By a field, its other names: the value is the first one's that is given.
ALIASES = {
    "nsigma": ("top_n_sigma",),
    "mirostat_mode": ("mirostat",),
    "repetition_penalty": ("repeat_penalty",),
    "repetition_penalty_range": ("rep_pen_range", "repeat_last_n"),
    "dry_range": ("dry_penalty_last_n",),
}
# What narrows or bends the distribution: by field, the values that ask for nothing.
FILTERS: dict[str, tuple[Any, ...]] = {
    "top_a": (0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "nsigma": (0, -1),
    "top_n_sigma": (0, -1),
    "smoothing_factor": (0,),
    "dynatemp_min": (0,),
    "dynatemp_max": (0,),
    "dynatemp_range": (0,),
    "xtc_probability": (0,),
    "skew": (0,),
    "mirostat_mode": (0,),
    "mirostat": (0,),
}


class SamplerFields(StrictModel):
    """Aphrodite's names, then those of llama.cpp and KoboldCpp for the same.

    A range of 0 or -1 is all that the engine looks back, except `repeat_last_n`, whose 0 switches the penalties off, as
    in llama.cpp. A sampler that an order leaves out does not act, if that order has a name for it.
    """

    top_a: Share = None
    tfs: float | None = None  # 1, which is off: anything else needs the vocabulary sorted
    epsilon_cutoff: Share = None
    eta_cutoff: Share = None
    nsigma: Sigmas = None
    top_n_sigma: Sigmas = None
    smoothing_factor: Amount = None
    smoothing_curve: Annotated[float | None, Range(1, 100)] = None
    dynatemp_min: Amount = None
    dynatemp_max: Amount = None
    dynatemp_range: Amount = None
    dynatemp_exponent: Annotated[float | None, Range(0.01, 100)] = None
    temperature_last: bool | None = None
    xtc_threshold: Share = None
    xtc_probability: Share = None
    skew: Annotated[float | None, Range(-10, 10)] = None
    mirostat_mode: Switch = None
    mirostat: Switch = None
    mirostat_tau: Amount = None
    mirostat_eta: Share = None
    repeat_penalty: Annotated[float | None, Range(MIN_SCALE, MAX_SCALE)] = None
    repetition_penalty_range: LookBack = None
    rep_pen_range: LookBack = None
    repeat_last_n: LookBack = None
    rep_pen_slope: Annotated[float | None, Range(0, 10)] = None  # 0 and above 1 mean 1, as in KoboldCpp
    no_repeat_ngram_size: Annotated[int | None, Range(0, MAX_REPEAT)] = None
    dry_multiplier: Amount = None
    dry_base: Annotated[float | None, Range(1, 100)] = None
    dry_allowed_length: Annotated[int | None, Range(1, MAX_REPEAT)] = None
    dry_range: LookBack = None
    dry_penalty_last_n: LookBack = None
    dry_sequence_breakers: Annotated[list[str], Field(max_length=MAX_BREAKERS)] | str | None = None  # text: it as JSON
    dry_sequence_breaker_ids: Annotated[list[Id], Field(max_length=MAX_BREAKER_IDS)] | None = None
    custom_token_bans: Annotated[list[Id], Field(max_length=MAX_BANS)] | str | None = None  # a text is ids and commas
    sampler_priority: Annotated[list[str], Field(max_length=MAX_ORDER)] | None = None  # Aphrodite's order
    samplers: Annotated[list[str], Field(max_length=MAX_ORDER)] | str | None = None  # llama.cpp's; a text is of letters
    sampler_order: Annotated[list[int], Field(max_length=MAX_ORDER)] | None = None  # KoboldCpp's

    def value(self, name: str) -> Any:
        """The value of a field, by whichever of its names it is given; None if by none."""
        values = (getattr(self, each, None) for each in (name, *ALIASES.get(name, ())))
        return next((value for value in values if value is not None), None)

    @field_validator("dry_sequence_breakers")
    @classmethod
    def _are_texts(cls, value: list[str] | str | None) -> list[str] | None:
        breakers = _from_json(value) if isinstance(value, str) else value
        if breakers is not None and not all(0 < len(each) <= MAX_BREAKER_CHARACTERS for each in breakers):
            raise ValueError(f"each text must have 1 to {MAX_BREAKER_CHARACTERS} characters")
        return breakers

    @field_validator("custom_token_bans")
    @classmethod
    def _are_ids(cls, value: list[int] | str | None) -> list[int] | None:
        if not isinstance(value, str):
            return value
        ids = [each.strip() for each in value.split(",")] if value.strip() else []
        if len(ids) > MAX_BANS or not all(ID.fullmatch(each) for each in ids):
            raise ValueError(f"must be a list, or a text, of at most {MAX_BANS} token ids with commas between them")
        return [int(each) for each in ids]

    @property
    def filters(self) -> bool:
        """Whether it asks for a sampler that only means something where tokens are drawn."""
        return any(getattr(self, name) not in (None, *neutral) for name, neutral in FILTERS.items())


def _from_json(text: str) -> list[str] | None:
    """The list of texts that `text` is as JSON; None if it is empty. Raises ValueError."""
    try:
        value = strict_json(text) if text else None
    except NotStrictJson:
        value = text
    if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise ValueError("must be a list of texts, or a text that is such a list as JSON")
    if value is not None and len(value) > MAX_BREAKERS:
        raise ValueError(f"must have at most {MAX_BREAKERS} entries")
    return value

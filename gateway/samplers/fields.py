"""The samplers of Aphrodite, KoboldCpp and llama.cpp as fields of a request, each by the names it has there.

Only types are checked here; `rules.py` checks the rest. `null` means absent, and
every field's neutral value means what its absence means. `jaxengine/rpc/engine.proto` says what each sampler does.
"""

from typing import Annotated, Any

from pydantic import Field

from gateway.http.body import StrictModel
from gateway.samplers.ranges import Range
from gateway.samplers.texts import Bans, Breakers, Id
from gateway.text.sampling_defaults import MAX_SCALE, MIN_SCALE
from jaxengine.rpc.limits import MAX_LOOK_BACK, MAX_REPEAT

MAX_BREAKER_IDS = 1024
MAX_ORDER = 64  # names of samplers

Share = Annotated[float | None, Range(0, 1)]
Switch = Annotated[int | None, Range(0, 2)]
Sigmas = Annotated[float | None, Range(-1, 1000)]
Amount = Annotated[float | None, Range(0, 100)]
LookBack = Annotated[int | None, Range(-1, MAX_LOOK_BACK)]

# By a field, its other names: the value is the first one's that is given.
ALIASES = {
    "nsigma": ("top_n_sigma",),
    "dynatemp_min": ("dynatemp_low",),
    "dynatemp_max": ("dynatemp_high",),
    "mirostat_mode": ("mirostat",),
    "repetition_penalty": ("repeat_penalty",),
    "repetition_penalty_range": ("rep_pen_range", "repeat_last_n"),
    "dry_range": ("dry_penalty_last_n",),
}
# What narrows or bends the distribution: by field, the values that ask for nothing.
FILTERS: dict[str, tuple[Any, ...]] = {
    "min_p": (0,),
    "top_a": (0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "nsigma": (0, -1),
    "top_n_sigma": (0, -1),
    "smoothing_factor": (0,),
    "dynatemp_min": (0,),
    "dynatemp_max": (0,),
    "dynatemp_low": (0,),
    "dynatemp_high": (0,),
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
    min_p: Share = None
    epsilon_cutoff: Share = None
    eta_cutoff: Share = None
    nsigma: Sigmas = None
    top_n_sigma: Sigmas = None
    smoothing_factor: Amount = None
    smoothing_curve: Annotated[float | None, Range(1, 100)] = None
    dynatemp_min: Amount = None
    dynatemp_max: Amount = None
    dynatemp_low: Amount = None
    dynatemp_high: Amount = None
    dynatemp_range: Amount = None
    dynatemp_exponent: Annotated[float | None, Range(0, 100)] = None
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
    rep_pen_slope: Annotated[float | None, Range(0, 10)] = None  # 0 and above 1 mean 1, no slope
    no_repeat_ngram_size: Annotated[int | None, Range(0, MAX_REPEAT)] = None
    dry_multiplier: Amount = None
    dry_base: Annotated[float | None, Range(1, 100)] = None
    dry_allowed_length: Annotated[int | None, Range(1, MAX_REPEAT)] = None
    dry_range: LookBack = None
    dry_penalty_last_n: LookBack = None
    dry_sequence_breakers: Breakers = None
    dry_sequence_breaker_ids: Annotated[list[Id], Field(max_length=MAX_BREAKER_IDS)] | None = None
    custom_token_bans: Bans = None
    sampler_priority: Annotated[list[str | int], Field(max_length=MAX_ORDER)] | None = None  # Aphrodite's order
    samplers: Annotated[list[str], Field(max_length=MAX_ORDER)] | str | None = None  # llama.cpp's; a text is of letters
    sampler_order: Annotated[list[int], Field(max_length=MAX_ORDER)] | None = None  # KoboldCpp's

    def value(self, name: str) -> Any:
        """The value of a field, by whichever of its names it is given; None if by none."""
        values = (getattr(self, each, None) for each in (name, *ALIASES.get(name, ())))
        return next((value for value in values if value is not None), None)

    @property
    def filters(self) -> bool:
        """Whether it asks for a sampler that only means something where tokens are drawn."""
        return any(getattr(self, name) not in (None, *neutral) for name, neutral in FILTERS.items())

"""In which order samplers act, in the words of three servers.

The engine applies n-gram bans, DRY and the penalties first, of the last two either before the other; what narrows or
bends the distribution comes in any order. Sources: Aphrodite's `SamplerID`, llama.cpp's
`common_sampler_types_from_names` and `common_sampler_type_to_chr`, KoboldCpp's `samplers` enum.
"""

from collections.abc import Mapping, Sequence

from gateway.samplers.fields import SamplerFields
from jaxengine.rpc import engine_pb2 as pb

NGRAM, DRY, PENALTIES = "no_repeat_ngram_size", "dry", "penalties"
# The engine's own order.
FIRST = (NGRAM, DRY, PENALTIES)
FILTERS = tuple(pb.Samplers.Kind.Name(kind).lower() for kind in pb.Samplers.Kind.values() if kind != pb.Samplers.NONE)
Names = Mapping[str, tuple[str, ...]]

APHRODITE: Names = {
    "dry": (DRY,),
    "penalties": (PENALTIES,),
    "no_repeat_ngram": (NGRAM,),
    "temperature": ("temperature",),
    "top_nsigma": ("top_n_sigma",),
    "top_p_top_k": ("top_k", "top_p"),
    "top_a": ("top_a",),
    "min_p": ("min_p",),
    "tfs": (),
    "eta_cutoff": ("eta_cutoff",),
    "epsilon_cutoff": ("epsilon_cutoff",),
    "typical_p": ("typical_p",),
    "quadratic": ("smoothing_factor",),
    "xtc": ("xtc",),
}
NUMBERS = {  # of Aphrodite's names
    "0": "top_p_top_k",
    "1": "top_a",
    "2": "min_p",
    "3": "tfs",
    "4": "typical_p",
    "5": "temperature",
    "6": "penalties",
    "7": "dry",
    "8": "no_repeat_ngram",
    "9": "top_nsigma",
    "10": "eta_cutoff",
    "11": "epsilon_cutoff",
    "12": "quadratic",
    "13": "xtc",
}
LLAMA_CPP: Names = {
    "penalties": (PENALTIES,),
    "dry": (DRY,),
    "top_n_sigma": ("top_n_sigma",),
    "top_k": ("top_k",),
    "typ_p": ("typical_p",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "xtc": ("xtc",),
    "temperature": ("temperature",),
    "adaptive_p": (),
}
SYNONYMS = {"typical_p": "typ_p", "typical": "typ_p", "temp": "temperature", "nucleus": "top_p"}  # in llama.cpp
LETTERS = dict(zip("edskypmxta", LLAMA_CPP, strict=True))
KOBOLD: Names = {
    "0": ("top_k",),
    "1": ("top_a",),
    "2": ("top_p", "min_p"),
    "3": (),  # tail free sampling
    "4": ("typical_p",),
    "5": ("temperature", "smoothing_factor", "top_n_sigma"),
    "6": (PENALTIES,),
}
SPELLINGS = {"sampler_priority": NUMBERS, "samplers": SYNONYMS, "sampler_order": {}}
FIELDS: dict[str, Names] = {"sampler_priority": APHRODITE, "samplers": LLAMA_CPP, "sampler_order": KOBOLD}


def order_field(fields: SamplerFields) -> str | None:
    """The field that says the order; None where none does."""
    return next((name for name in FIELDS if getattr(fields, name)), None)


def named(fields: SamplerFields, field: str) -> list[str]:
    """The names in `field`, as its table in `FIELDS` spells them if it knows them."""
    value = getattr(fields, field) or ()
    if field == "samplers" and isinstance(value, str):
        return [LETTERS.get(letter, letter) for letter in value]
    plain = (str(name).lower().replace("-", "_") for name in value)
    return [SPELLINGS[field].get(name, name) for name in plain]


def stages(fields: SamplerFields) -> list[str]:
    """What acts, first to last, of those that the request asks for: n-gram bans, DRY, penalties and filters.

    Samplers that an order has no names for act all the same: of the first three before it, of the filters behind it.
    """
    field = order_field(fields)
    stages = [*FIRST, *FILTERS] if field is None else _ordered(FIELDS[field], named(fields, field))
    if fields.temperature_last and "temperature" in stages:
        stages.remove("temperature")
        stages.append("temperature")
    return stages


def _ordered(known: Names, names: Sequence[str]) -> list[str]:
    nameable = {stage for stages in known.values() for stage in stages}
    ahead = [stage for stage in FIRST if stage not in nameable]
    behind = [stage for stage in FILTERS if stage not in nameable]
    return ahead + [stage for name in names for stage in known[name]] + behind

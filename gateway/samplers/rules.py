"""The rules of the samplers' fields, told without a dialect's wording: each dialect makes a sentence of a `Problem`."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from gateway.http.validation_messages import MAX_SHOWN
from gateway.samplers.fields import ALIASES, SamplerFields
from gateway.samplers.order import FIELDS, named, order_field
from gateway.samplers.ranges import Range

TFS = "must be 1, which is off: it needs the vocabulary sorted for each token, and llama.cpp dropped it; min_p is close"
MIROSTAT = "must be 0 or 2: only version 2 is served"


# Fields that mean nothing unless one of these is more than 0.
TOLD = {
    "smoothing_curve": ("smoothing_factor",),
    "dynatemp_exponent": ("dynatemp_range", "dynatemp_max"),
    "xtc_threshold": ("xtc_probability",),
    "mirostat_tau": ("mirostat_mode",),
    "mirostat_eta": ("mirostat_mode",),
    **dict.fromkeys(("dry_base", "dry_allowed_length", "dry_range", "dry_penalty_last_n"), ("dry_multiplier",)),
}


class Problem(NamedTuple):
    """What is wrong with `field`: the rest of a sentence that begins with its name, and the value if it is a number."""

    field: str
    text: str
    given: float | None = None

    @property
    def shown(self) -> str:
        """The value as a message repeats it; empty if there is none, or one of too many digits."""
        text = f"{self.given:g}" if isinstance(self.given, float) else str(self.given)
        return "" if self.given is None or len(text) > MAX_SHOWN else text


def first_problem(fields: SamplerFields) -> Problem | None:
    """The first broken rule of those that need no more than the fields."""
    for rule in (_out_of_range, _not_served, _two_names, _dynamic_temperature, _orders):
        for problem in rule(fields):
            return problem
    return None


def _out_of_range(fields: SamplerFields) -> Iterator[Problem]:
    for name, declared in SamplerFields.model_fields.items():
        value = getattr(fields, name)
        if name in TOLD and not any(fields.value(sampler) for sampler in TOLD[name]):
            continue
        for limits in declared.metadata:
            if value is not None and isinstance(limits, Range) and value not in limits:
                low = value < limits.low
                bound = f"at least {limits.low:g}" if low else f"at most {limits.high:g}"
                yield Problem(name, f"must be {bound}", value)


def _not_served(fields: SamplerFields) -> Iterator[Problem]:
    if fields.tfs not in (None, 1):
        yield Problem("tfs", TFS, fields.tfs)
    for name in ("mirostat_mode", "mirostat"):
        if getattr(fields, name) == 1:
            yield Problem(name, MIROSTAT, 1)
    if fields.value("mirostat_mode") and fields.mirostat_tau == 0:
        yield Problem("mirostat_tau", "must be above 0 for mirostat to aim at", 0)


def _two_names(fields: SamplerFields) -> Iterator[Problem]:
    for name, others in ALIASES.items():
        values: dict[str, Any] = {each: getattr(fields, each, None) for each in (name, *others)}
        first, *rest = [each for each, value in values.items() if value is not None] or [name]
        for each in rest:
            if values[each] != values[first] and max(values[each], values[first]) > 0:  # 0 and -1 mean the same
                text = f"must be {values[first]:g}, as {first} is, which means the same"
                yield Problem(each, text, values[each])


def _dynamic_temperature(fields: SamplerFields) -> Iterator[Problem]:
    low, high, spread = fields.value("dynatemp_min"), fields.value("dynatemp_max"), fields.dynatemp_range
    if low and high is None:
        yield Problem("dynatemp_min", "needs dynatemp_max beside it", low)
    elif high and low is None:
        yield Problem("dynatemp_max", "needs dynatemp_min beside it", high)
    elif low and low > high:
        yield Problem("dynatemp_min", f"must be at most dynatemp_max, {high:g}", low)
    elif high and spread and abs((high - low) / 2 - spread) > 1e-6:
        text = f"must be {(high - low) / 2:g}, half of what lies between dynatemp_min and dynatemp_max"
        yield Problem("dynatemp_range", text, spread)


def _orders(fields: SamplerFields) -> Iterator[Problem]:
    field = order_field(fields)
    if field is None:
        return
    for other in FIELDS:
        if other != field and getattr(fields, other):
            yield Problem(other, f"is an order of the samplers, as {field} is: give one of them")
    names = named(fields, field)
    if len(set(names)) < len(names) or not FIELDS[field].keys() >= set(names):
        yield Problem(field, f"must name each sampler once, of {', '.join(FIELDS[field])}")


def unknown_id(fields: SamplerFields, vocab_size: int) -> Problem | None:
    """The first id that is no token of the vocabulary: the device would answer wrongly, not fail."""
    for name in ("dry_sequence_breaker_ids", "custom_token_bans"):
        if (most := max(getattr(fields, name) or (), default=0)) >= vocab_size:
            return Problem(name, f"must hold ids of tokens, which are 0..{vocab_size - 1}", most)
    return None

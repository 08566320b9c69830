"""Which samplers a request asks for, and their fields in the engine's message.

A sampler whose value does nothing is not asked for, and then its other fields mean nothing.
"""

from collections.abc import Collection, Mapping
from typing import Any

from gateway.samplers.fields import SamplerFields
from gateway.samplers.order import DRY, NGRAM, PENALTIES
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.limits import MAX_LOOK_BACK

Asked = dict[str, dict[str, Any]]  # by stage, fields of `pb.Samplers`

# Those that `pb.Sampling` has for every dialect: by name, what does nothing.
COMMON_FILTERS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "typical_p": 1.0, "min_p": 0.0}
COMMON_PENALTIES = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
MIROSTAT_TAU, MIROSTAT_ETA = 5.0, 0.1
LEAST_EXPONENT = 0.0100000007  # of a dynamic temperature: in float32, as it is sent, 0.01 is below the engine's limit
MOST_XTC = 0.5  # a threshold above it is reached by one token at most, and XTC drops none


def before_filters(
    sampling: pb.Sampling, fields: SamplerFields, defaults: Mapping[str, float], breakers: Collection[int]
) -> Asked:
    """N-gram bans, DRY and penalties."""
    asked: Asked = {}
    if size := int(_chosen(fields, "no_repeat_ngram_size", defaults)):
        asked[NGRAM] = {"no_repeat_ngram_size": size}
    if fields.dry_multiplier:
        given = _given(fields, "dry_multiplier", "dry_base", "dry_allowed_length")
        looks_back = {"dry_range": fields.value("dry_range")} if (fields.value("dry_range") or 0) > 0 else {}
        asked[DRY] = {**given, **looks_back, "dry_breakers": breakers}
    if any(getattr(sampling, name) != neutral for name, neutral in COMMON_PENALTIES.items()) and not _off(fields):
        asked[PENALTIES] = _penalties(sampling, fields)
    return asked


def filters(sampling: pb.Sampling, fields: SamplerFields, defaults: Mapping[str, float]) -> Asked:
    """What narrows or bends the distribution."""
    asked: Asked = {name: {} for name, neutral in COMMON_FILTERS.items() if getattr(sampling, name) != neutral}
    if spread := _spread(fields):
        exponent = {name: max(value, LEAST_EXPONENT) for name, value in _given(fields, "dynatemp_exponent").items()}
        asked["temperature"] = {"dynatemp_range": spread, **exponent}
    for name in ("top_a", "epsilon_cutoff", "eta_cutoff", "skew"):
        if value := _chosen(fields, name, defaults):
            asked[name] = {name: value}
    if (sigmas := fields.value("nsigma") or 0) > 0:
        asked["top_n_sigma"] = {"top_n_sigma": sigmas}
    if fields.smoothing_factor:
        asked["smoothing_factor"] = _given(fields, "smoothing_factor", "smoothing_curve")
    if fields.xtc_probability and (fields.xtc_threshold or 0) <= MOST_XTC:
        asked["xtc"] = _given(fields, "xtc_probability", "xtc_threshold")
    if fields.value("mirostat_mode"):
        tau, eta = fields.mirostat_tau or MIROSTAT_TAU, fields.mirostat_eta
        asked["mirostat"] = {"mirostat_tau": tau, "mirostat_eta": MIROSTAT_ETA if eta is None else eta}
    return asked


def middle_temperature(fields: SamplerFields) -> float | None:
    """The temperature that `dynatemp_min` and `dynatemp_max` are around; None if they are off."""
    low, high = _bounds(fields)
    return (low + high) / 2 if high else None


def _spread(fields: SamplerFields) -> float:
    low, high = _bounds(fields)
    return (high - low) / 2 if high else fields.dynatemp_range or 0


def _bounds(fields: SamplerFields) -> tuple[float, float]:
    return fields.value("dynatemp_min") or 0, fields.value("dynatemp_max") or 0


def _penalties(sampling: pb.Sampling, fields: SamplerFields) -> dict[str, Any]:
    """How far they look back. A slope needs a range to have an older half."""
    looks_back = max(0, fields.value("repetition_penalty_range") or 0)
    slope = fields.rep_pen_slope
    if slope is None or not 0 < slope < 1 or sampling.repetition_penalty == 1:
        return {"repetition_range": looks_back} if looks_back else {}
    return {"repetition_range": looks_back or MAX_LOOK_BACK, "repetition_slope": slope}


def _off(fields: SamplerFields) -> bool:
    """Whether the penalties are switched off, by llama.cpp's `repeat_last_n` alone."""
    return fields.repeat_last_n == 0 and fields.repetition_penalty_range is None and fields.rep_pen_range is None


def _chosen(fields: SamplerFields, name: str, defaults: Mapping[str, float]) -> float:
    value = fields.value(name)
    return float(defaults.get(name, 0) if value is None else value)


def _given(fields: SamplerFields, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(fields, name)) is not None}

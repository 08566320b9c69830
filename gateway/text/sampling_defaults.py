"""Sampling parameters that all dialects share: the ranges that float32 can compute with, and the defaults that a
model's author recommends.
"""

from typing import Any

from jaxengine.rpc.limits import MAX_REPEAT

MIN_SCALE, MAX_SCALE = 1e-3, 100.0  # of temperature and repetition penalty: float32 logits stay finite
GREEDY_TEMPERATURE = 1e-4  # below it a softmax in float32 is an argmax, or NaN
RANGES = {  # of the defaults in generation_config.json
    "temperature": (0.0, MAX_SCALE),
    "top_k": (0, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "typical_p": (1e-6, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (MIN_SCALE, MAX_SCALE),
    "epsilon_cutoff": (0.0, 1.0),
    "eta_cutoff": (0.0, 1.0),
    "no_repeat_ngram_size": (0, MAX_REPEAT),
}


def recommended(config: dict[str, Any]) -> dict[str, float]:
    """The defaults in a generation_config.json, for fields that requests leave open. Raises ValueError."""
    chosen = {name: config[name] for name in RANGES if config.get(name) is not None}
    for name, value in chosen.items():
        low, high = RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"generation_config.json: {name} must be a number in {low}..{high}, not {value!r}")
    return chosen

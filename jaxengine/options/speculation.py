"""How an engine speculates, as TGI's `--speculate` and vLLM's `--speculative-config` say it. Nothing is opened here."""

import json
from dataclasses import dataclass, fields
from typing import Any

from jaxengine.options.values import Value

MAX_DRAFT_TOKENS = 63  # of one request in a step
MAX_LOOKUP = 1024  # tokens of an n-gram
NOT_SERVED = ("medusa", "mlp_speculator", "eagle", "eagle3", "draft_model", "mtp", "suffix")  # vLLM's other methods
NGRAM_MODELS = ("ngram", "[ngram]")  # vLLM takes them as `model` where there is no `method`


@dataclass(frozen=True)
class Speculation:
    """What drafts tokens for a step to verify; names as in vLLM's `SpeculativeConfig`.

    method: ngram: what followed the text's last tokens where they last stood before, in the prompt or in the answer.
    num_speculative_tokens: most that a step verifies of one request; it takes fewer or none where they do not pay.
    prompt_lookup_min: how many tokens must have stood there before.
    prompt_lookup_max: how many equal tokens are counted there. The more there are, the likelier the next is equal too.

    Raises:
        ValueError: a value is out of bounds.
    """

    num_speculative_tokens: int
    method: str = "ngram"
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 16

    def __post_init__(self) -> None:
        _check_method(self.method)
        bounds = {
            "num_speculative_tokens": (1, MAX_DRAFT_TOKENS),
            "prompt_lookup_min": (1, MAX_LOOKUP),
            "prompt_lookup_max": (self.prompt_lookup_min, MAX_LOOKUP),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise ValueError(f"{name} must be a whole number between {low} and {high}, got {value!r}")

    @classmethod
    def parse(cls, text: str) -> "Speculation":
        """Of JSON. Raises ValueError, naming what is wrong."""
        config = _object(text)
        if "model" in config and "method" not in config:
            config["method"] = _method_of(config.pop("model"))
        _check_method(config.get("method", cls.method))  # first: what else there may be depends on it
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(config) - set(known)):
            raise ValueError(f"has {', '.join(unknown)}, which is not known; known are {', '.join(known)}")
        if "num_speculative_tokens" not in config:
            raise ValueError("must have num_speculative_tokens")
        lowest = config.get("prompt_lookup_min", cls.prompt_lookup_min)
        if "prompt_lookup_max" not in config and isinstance(lowest, int):
            config["prompt_lookup_max"] = max(lowest, cls.prompt_lookup_max)
        if "prompt_lookup_min" not in config and isinstance(config["prompt_lookup_max"], int):
            config["prompt_lookup_min"] = min(config["prompt_lookup_max"], cls.prompt_lookup_min)
        return cls(**config)


def _object(text: str) -> dict[str, Any]:
    """The fields of a JSON object that are not null."""
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ValueError("must be a JSON object")
    return {name: value for name, value in config.items() if value is not None}


def _method_of(model: object) -> str:
    """What drafts where only a `model` is named."""
    if model not in NGRAM_MODELS:
        raise ValueError(f"model {model!r} cannot be served as a drafter; served is method ngram")
    return "ngram"


def _check_method(method: object) -> None:
    if method != "ngram":
        raise ValueError(f"method {method!r} is not {'served' if method in NOT_SERVED else 'known'}; served is ngram")


def _checked(text: str) -> str:
    Speculation.parse(text)
    return text


speculative_config = Value("JSON", _checked)


def decide(speculate: int | None, config: str | None) -> Speculation | None:
    """What the two options mean together; None for no speculation. Raises ValueError where they contradict."""
    asked = Speculation.parse(config) if config else None
    if asked is None:
        return Speculation(speculate) if speculate else None
    if speculate is not None and speculate != asked.num_speculative_tokens:
        raise ValueError(
            f"speculate {speculate} contradicts num_speculative_tokens {asked.num_speculative_tokens} "
            "of speculative_config: give one of them"
        )
    return asked

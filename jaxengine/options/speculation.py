"""How an engine speculates, as TGI's `--speculate` and vLLM's `--speculative-config` say it. Nothing is opened here."""

import json
from dataclasses import dataclass, fields

from jaxengine.options.values import Value

MAX_DRAFT_TOKENS = 63  # of one request in a step
MAX_LOOKUP = 1024  # tokens of an n-gram


@dataclass(frozen=True)
class Speculation:
    """What drafts tokens for a step to verify; names and meaning as in vLLM's `SpeculativeConfig`.

    method: ngram: what followed the text's last tokens where they stood before, in the prompt or in the answer.
    num_speculative_tokens: most that a step verifies of one request; it takes fewer or none where they do not pay.
    prompt_lookup_min: how many tokens must have stood there before.
    prompt_lookup_max: among several such places the one with the longest match counts, up to this length.

    Raises:
        ValueError: a value is out of bounds.
    """

    num_speculative_tokens: int
    method: str = "ngram"
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 16

    def __post_init__(self) -> None:
        if self.method != "ngram":
            raise ValueError(f"method {self.method!r} is not known; known is ngram")
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
        try:
            config = json.loads(text)
        except ValueError:
            config = None
        if not isinstance(config, dict):
            raise ValueError("must be a JSON object")
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

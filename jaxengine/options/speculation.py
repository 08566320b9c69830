"""How an engine speculates, as TGI's `--speculate` and vLLM's `--speculative-config` say it. Nothing is opened here."""

import json
from dataclasses import dataclass, fields, replace
from typing import Any

from jaxengine.options.values import Value

MAX_DRAFT_TOKENS = 63  # of one request in a step
MAX_LOOKUP = 1024  # tokens of an n-gram
MAX_PATH = 4096  # as the kernel's
NGRAM, DRAFT_MODEL = "ngram", "draft_model"
LEARNT = ("medusa", "mlp_speculator", "eagle", "eagle3", DRAFT_MODEL)
NOT_SERVED = ("mtp", "suffix", "dflash", "peagle")  # vLLM's other methods
NGRAM_MODELS = (NGRAM, "[ngram]")  # vLLM takes them as `model` where there is no `method`
LOOKUP = ("prompt_lookup_min", "prompt_lookup_max")


@dataclass(frozen=True)
class Speculation:
    """What drafts tokens for a step to verify; names as in vLLM's `SpeculativeConfig`.

    num_speculative_tokens: most that a step verifies of one request; it takes fewer or none where they do not pay. None
        is as many as a learnt drafter guesses.
    method: ngram: what followed the text's last tokens where they last stood before, in the prompt or in the answer.
        medusa, mlp_speculator, eagle or eagle3: a drafter that was learnt. draft_model: a smaller model with the same
        tokens. None: what `model` is, or else what came with the model that is served, or else ngram.
    prompt_lookup_min: how many tokens must have stood there before.
    prompt_lookup_max: how many equal tokens are counted there. The more there are, the likelier the next is equal too.
    model: the learnt drafter or the draft model: a directory, or an id on the hub, with `@revision` or without. None:
        the drafter that came with the model that is served.

    Raises:
        ValueError: a value is out of bounds, or does not go with the method.
    """

    num_speculative_tokens: int | None = None
    method: str | None = None
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 16
    model: str | None = None

    def __post_init__(self) -> None:
        _check_method(self.method)
        _check_model(self.model, self.method)
        bounds = {
            "num_speculative_tokens": (1, MAX_DRAFT_TOKENS),
            "prompt_lookup_min": (1, MAX_LOOKUP),
            "prompt_lookup_max": (self.prompt_lookup_min, MAX_LOOKUP),
        }
        if self.num_speculative_tokens is None and self.method not in (NGRAM, DRAFT_MODEL):
            del bounds["num_speculative_tokens"]
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise ValueError(f"{name} must be a whole number between {low} and {high}, got {value!r}")

    @classmethod
    def parse(cls, text: str) -> "Speculation":
        """Of JSON. Raises ValueError, naming what is wrong."""
        config = _object(text)
        if "method" not in config and config.get("model") in NGRAM_MODELS:
            config["method"] = NGRAM
            del config["model"]
        _check_method(config.get("method"))  # first: what else there may be depends on it
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(config) - set(known)):
            raise ValueError(f"has {', '.join(unknown)}, which is not known; known are {', '.join(known)}")
        learnt = config.get("method") in LEARNT or ("method" not in config and "model" in config)
        if learnt and (lookup := [name for name in LOOKUP if name in config]):
            raise ValueError(f"has {' and '.join(lookup)}, which only method {NGRAM} has")
        if (not learnt or config.get("method") == DRAFT_MODEL) and "num_speculative_tokens" not in config:
            raise ValueError("must have num_speculative_tokens")
        return cls(**config) if learnt else cls(**_with_lookup(config))


def _with_lookup(config: dict[str, Any]) -> dict[str, Any]:
    """`config`; where one bound of the look-up is given, the other makes room for it, and the method is ngram."""
    given = {name: config[name] for name in LOOKUP if name in config}
    if not given:
        return config
    made = {"method": NGRAM, **config}
    lowest = given.get("prompt_lookup_min", Speculation.prompt_lookup_min)
    if "prompt_lookup_max" not in given and isinstance(lowest, int):
        made["prompt_lookup_max"] = max(lowest, Speculation.prompt_lookup_max)
    if "prompt_lookup_min" not in given and isinstance(given["prompt_lookup_max"], int):
        made["prompt_lookup_min"] = min(given["prompt_lookup_max"], Speculation.prompt_lookup_min)
    return made


def _object(text: str) -> dict[str, Any]:
    """The fields of a JSON object that are not null."""
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ValueError("must be a JSON object")
    return {name: value for name, value in config.items() if value is not None}


def _check_method(method: object) -> None:
    if method is not None and method not in (served := (NGRAM, *LEARNT)):
        problem = "served" if method in NOT_SERVED else "known"
        raise ValueError(f"method {method!r} is not {problem}; served are {', '.join(served)}")


def _check_model(model: object, method: str | None) -> None:
    if model is None:
        if method == DRAFT_MODEL:
            raise ValueError(f"must have model with method {DRAFT_MODEL}")
        return
    if method == NGRAM:
        raise ValueError(f"has model, which method {NGRAM} does not have: it drafts from the text itself")
    if not isinstance(model, str) or not model.isprintable() or not 0 < len(model) <= MAX_PATH:
        shown = repr(model)[:64]
        raise ValueError(f"model must be a directory or an id on the hub, at most {MAX_PATH} characters, got {shown}")


def _checked(text: str) -> str:
    Speculation.parse(text)
    return text


speculative_config = Value("JSON", _checked)


def decide(speculate: int | None, config: str | None) -> Speculation | None:
    """What the two options mean together; None for no speculation but by a drafter that comes with the model, which
    `speculate` 0 rules out too. Raises ValueError where they contradict.
    """
    asked = Speculation.parse(config) if config else None
    if asked is None:
        return Speculation(speculate) if speculate else None
    if speculate and asked.num_speculative_tokens is None:
        return replace(asked, num_speculative_tokens=speculate)
    if speculate is not None and speculate != asked.num_speculative_tokens:
        given = next(name for name in ("num_speculative_tokens", "model", "method") if getattr(asked, name) is not None)
        against = f"{given} {getattr(asked, given)!r} of speculative_config"
        raise ValueError(f"speculate {speculate} contradicts {against}: give one of them")
    return asked

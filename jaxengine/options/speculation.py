"""How an engine speculates, as TGI's `--speculate` and vLLM's `--speculative-config` say it. Nothing is opened here."""

import json
from dataclasses import dataclass, fields, replace
from typing import Any

from jaxengine.options.values import JSON, Value

MAX_DRAFT_TOKENS = 63  # of one request in a step
MAX_LOOKUP = 1024  # tokens of an n-gram, or of a match
MAX_CACHED_REQUESTS = 1_000_000
MAX_PATH = 4096  # as the kernel's
NGRAM, SUFFIX, DRAFT_MODEL, MTP = "ngram", "suffix", "draft_model", "mtp"
LEARNT = ("medusa", "mlp_speculator", "eagle", "eagle3", MTP, DRAFT_MODEL)
NOT_SERVED = ("dflash", "dspark", "peagle", "extract_hidden_states", "custom_class")  # vLLM's other methods
OF_FAMILIES = f"_{MTP}"  # the end of vLLM's names for the module of each family
OTHER_NAMES = {"ngram_gpu": NGRAM}  # vLLM's, of the same guesses computed elsewhere
NGRAM_MODELS = (NGRAM, "[ngram]")  # vLLM takes them as `model` where there is no `method`
LOOKUP = ("prompt_lookup_min", "prompt_lookup_max")
OWN_FIELDS = {  # of the methods that have some
    NGRAM: LOOKUP,
    SUFFIX: (
        "suffix_decoding_max_tree_depth",
        "suffix_decoding_max_cached_requests",
        "suffix_decoding_max_spec_factor",
        "suffix_decoding_min_token_prob",
    ),
}
# vLLM's fields of how a drafter is computed, which changes no answer: here it is computed as the model is.
NO_EFFECT = (
    *("draft_tensor_parallel_size", "enforce_eager", "max_model_len", "code_revision", "attention_backend"),
    *("moe_backend", "disable_padded_drafter_batch", "use_local_argmax_reduction"),
)
# Its fields of which these values ask for what is done here, and no others are served.
SERVED_VALUES: dict[str, tuple[Any, ...]] = {
    "parallel_drafting": (False,),
    "enable_adaptive_verification": (True, False),  # no draft is verified that does not pay
    "use_heterogeneous_vocab": (False,),
    "draft_sample_method": ("greedy",),
    "rejection_sample_method": ("standard", "strict"),
}


@dataclass(frozen=True)
class Speculation:
    """What drafts tokens for a step to verify; names as in vLLM's `SpeculativeConfig`.

    num_speculative_tokens: most that a step verifies of one request; it takes fewer or none where they do not pay. None
        is as many as a learnt drafter guesses, and with suffix the depth.
    method: ngram: what followed the text's last tokens where they last stood before, in the prompt or in the answer.
        suffix: that, or what followed them in recent answers to requests that may share its cached prefix.
        medusa, mlp_speculator, eagle or eagle3: a drafter that was learnt. mtp: the module for it among a model's own
        tensors. draft_model: a smaller model with the same tokens. None: what `model` is, or else what came with the
        model that is served, or else ngram.
    prompt_lookup_min: how many tokens must have stood there before.
    prompt_lookup_max: how many equal tokens are counted there. The more there are, the likelier the next is equal too.
    model: the learnt drafter or the draft model: a directory, or an id on the hub, with `@revision` or without. None:
        the drafter that came with the model that is served.
    suffix_decoding_max_tree_depth: as `prompt_lookup_max`, of suffix.
    suffix_decoding_max_cached_requests: how many answers are recent; 0 is none, so each request has its own text alone.
    suffix_decoding_max_spec_factor: how many times as long as the match a draft may be.
    suffix_decoding_min_token_prob: how likely a guess must be right, and those before it.

    Raises:
        ValueError: a value is out of bounds, or does not go with the method.
    """

    num_speculative_tokens: int | None = None
    method: str | None = None
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 16
    model: str | None = None
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10_000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1

    def __post_init__(self) -> None:
        _check_method(self.method)
        _check_model(self.model, self.method)
        bounds = {
            "num_speculative_tokens": (1, MAX_DRAFT_TOKENS),
            "prompt_lookup_min": (1, MAX_LOOKUP),
            "prompt_lookup_max": (self.prompt_lookup_min, MAX_LOOKUP),
            "suffix_decoding_max_tree_depth": (1, MAX_LOOKUP),
            "suffix_decoding_max_cached_requests": (0, MAX_CACHED_REQUESTS),
        }
        if self.num_speculative_tokens is None and self.method not in (NGRAM, DRAFT_MODEL):
            del bounds["num_speculative_tokens"]
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise ValueError(f"{name} must be a whole number between {low} and {high}, got {value!r}")
        _check_number("suffix_decoding_max_spec_factor", self.suffix_decoding_max_spec_factor, MAX_LOOKUP)
        _check_number("suffix_decoding_min_token_prob", self.suffix_decoding_min_token_prob, 1)

    @property
    def lookup(self) -> tuple[int, int]:
        """Tokens of a match in a request's own text: how many there must be, and how many are counted."""
        if self.method == SUFFIX:
            longest = self.suffix_decoding_max_tree_depth
            return min(Speculation.prompt_lookup_min, longest), longest
        return self.prompt_lookup_min, self.prompt_lookup_max

    @classmethod
    def parse(cls, text: str) -> "Speculation":
        """Of JSON. Raises ValueError, naming what is wrong."""
        config = _in_our_fields(_object(text))
        if "method" not in config and config.get("model") in NGRAM_MODELS:
            config["method"] = NGRAM
            del config["model"]
        _check_method(config.get("method"))  # first: what else there may be depends on it
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(config) - set(known)):
            raise ValueError(f"has {', '.join(unknown)}, which is not known; known are {', '.join(known)}")
        learnt = config.get("method") in LEARNT or ("method" not in config and "model" in config)
        _check_own_fields(config, config.get("method", "" if learnt else NGRAM))
        counts = config.get("method") == SUFFIX or (learnt and config.get("method") != DRAFT_MODEL)
        if not counts and "num_speculative_tokens" not in config:
            raise ValueError("must have num_speculative_tokens")
        return cls(**config) if learnt else cls(**_with_lookup(config))


def without_effect(config: str | None) -> list[str]:
    """The fields of the JSON `config` that are taken and change nothing."""
    return [name for name in _object(config or "{}") if name in NO_EFFECT]


def _in_our_fields(config: dict[str, Any]) -> dict[str, Any]:
    """`config` without the fields of vLLM's that ask for nothing else, and with its `revision` behind the model."""
    for name, served in SERVED_VALUES.items():
        if name in config and (value := config[name]) not in served:
            raise ValueError(f"{name} {value!r} is not served; served is {' or '.join(map(json.dumps, served))}")
    made = {name: value for name, value in config.items() if name not in (*NO_EFFECT, *SERVED_VALUES)}
    if isinstance(method := made.get("method"), str):
        made["method"] = MTP if method.endswith(OF_FAMILIES) else OTHER_NAMES.get(method, method)
    if "revision" in made:
        made["model"] = _of_revision(made.get("model"), made.pop("revision"))
    return made


def _of_revision(model: object, revision: object) -> str:
    if not isinstance(model, str) or "@" in model:
        raise ValueError("has revision, which goes with a model that has no @revision of its own")
    if not isinstance(revision, str) or not revision:
        raise ValueError(f"revision must be a branch, a tag or a commit, got {revision!r}")
    return f"{model}@{revision}"


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
    if method is not None and method not in (served := (NGRAM, *LEARNT, SUFFIX)):
        problem = "served" if method in NOT_SERVED else "known"
        raise ValueError(f"method {method!r} is not {problem}; served are {', '.join(served)}")


def _check_own_fields(config: dict[str, Any], method: str) -> None:
    """That no field is given which only another method has."""
    for owner, names in OWN_FIELDS.items():
        if owner != method and (given := [name for name in names if name in config]):
            raise ValueError(f"has {' and '.join(given)}, which only method {owner} has")


def _check_number(name: str, value: object, high: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= high:
        raise ValueError(f"{name} must be a number between 0 and {high}, got {value!r}")


def _check_model(model: object, method: str | None) -> None:
    if model is None:
        if method == DRAFT_MODEL:
            raise ValueError(f"must have model with method {DRAFT_MODEL}")
        return
    if method == MTP:
        raise ValueError(f"has model, which method {MTP} does not have: the module is among the served model's tensors")
    if method in OWN_FIELDS:
        raise ValueError(f"has model, which method {method} does not have: it drafts from the text itself")
    if not isinstance(model, str) or not model.isprintable() or not 0 < len(model) <= MAX_PATH:
        shown = repr(model)[:64]
        raise ValueError(f"model must be a directory or an id on the hub, at most {MAX_PATH} characters, got {shown}")


def _checked(text: str) -> str:
    Speculation.parse(text)
    return text


speculative_config = Value(JSON, _checked)


def decide(speculate: int | None, config: str | None) -> Speculation | None:
    """What the two options mean together; None for no speculation but by a drafter that comes with the model, which
    `speculate` 0 rules out too. Raises ValueError where they contradict.
    """
    asked = Speculation.parse(config) if config else None
    if asked is None:
        return Speculation(speculate) if speculate else None
    if asked.num_speculative_tokens is None and asked.method == SUFFIX and speculate is None:
        return replace(asked, num_speculative_tokens=min(asked.suffix_decoding_max_tree_depth, MAX_DRAFT_TOKENS))
    if speculate and asked.num_speculative_tokens is None:
        return replace(asked, num_speculative_tokens=speculate)
    if speculate is not None and speculate != asked.num_speculative_tokens:
        given = next(name for name in ("num_speculative_tokens", "model", "method") if getattr(asked, name) is not None)
        against = f"{given} {getattr(asked, given)!r} of speculative_config"
        raise ValueError(f"speculate {speculate} contradicts {against}: give one of them")
    return asked

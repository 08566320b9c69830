"""The samplers of Aphrodite, KoboldCpp and llama.cpp that a request may ask for, and the order in which they act."""

from dataclasses import dataclass, fields
from typing import Self

from jaxengine.request.ranges import check_range
from jaxengine.rpc.limits import MAX_LOOK_BACK, MAX_REPEAT

# What narrows or bends the distribution, in the order in which it acts unless a request says otherwise. On the wire and
# on the device a sampler is its place in this list, counted from 1.
ORDER = (
    "temperature",
    "top_n_sigma",
    "top_a",
    "epsilon_cutoff",
    "eta_cutoff",
    "smoothing_factor",
    "xtc",
    "top_k",
    "top_p",
    "typical_p",
    "min_p",
    "skew",
    "mirostat",
)
WHOLE = {"repetition_range", "no_repeat_ngram_size", "dry_allowed_length", "dry_range"}


@dataclass(frozen=True, kw_only=True)
class Samplers:
    """As made, none of them acts. p are the probabilities that the samplers before leave, x their logarithms.

    top_n_sigma: keeps x ≥ max x - n·σ, σ the standard deviation of the logits that are left (Tang et al. 2024,
        arXiv 2411.07641).
    top_a: keeps p ≥ a·(max p)² (KoboldAI).
    epsilon_cutoff, eta_cutoff: keep p ≥ ε, and p ≥ min(η, √η·exp(-entropy)); both the best always (Hewitt et al. 2022,
        arXiv 2210.15191).
    smoothing_factor, smoothing_curve: d = x - max x becomes d²·(g·d - k), with g = factor·(curve - 1) / 2 and
        k = factor·(3 - curve) / 2.
    xtc_threshold, xtc_probability: with that probability, drawn for each token, all ids with p ≥ threshold are dropped
        but the least likely of them (llama.cpp's XTC).
    dynatemp_range, dynatemp_exponent: the temperature T is lo + (hi - lo)·(entropy / its maximum)^exponent, lo and hi
        being T ∓ range, lo at least 0.
    skew: c, the sums of p in the order of ids, become c^exp(skew).
    mirostat_tau, mirostat_eta: version 2 of Basu et al. 2020 (arXiv 2007.14966), target and rate in bits, in place of
        all filters; tau 0 = off.
    repetition_range: the penalties count the last so many ids of prompt and answer; 0 = repetition counts all of both,
        the other two those of the answer.
    repetition_slope: ids only in the older half of that range are penalised 1 + (penalty - 1)·slope, if penalty > 1.
    no_repeat_ngram_size: no id may complete n ids that already stand in prompt and answer.
    dry_multiplier, dry_base, dry_allowed_length, dry_range: an id that would prolong a repetition of ℓ ≥ allowed ids,
        among the last `dry_range` (0 = all), loses multiplier·base^(ℓ - allowed) (llama.cpp's DRY).
    dry_breakers: ids that end a repetition, and lose nothing themselves.
    penalties_first: whether the penalties act before DRY, as in llama.cpp, and not behind it.
    order: those of ORDER that act, in this order; () = all that are asked for, in the order of ORDER.

    The sampler sees the last MAX_LOOK_BACK ids, and of a repetition MAX_REPEAT.

    Raises:
        ValueError: a value is out of range or not finite; the message names field, value and limit.
    """

    top_n_sigma: float = 0.0
    top_a: float = 0.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    smoothing_factor: float = 0.0
    smoothing_curve: float = 1.0
    xtc_threshold: float = 0.1
    xtc_probability: float = 0.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    skew: float = 0.0
    mirostat_tau: float = 0.0
    mirostat_eta: float = 0.1
    repetition_range: int = 0
    repetition_slope: float = 1.0
    no_repeat_ngram_size: int = 0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int = 0
    dry_breakers: tuple[int, ...] = ()
    penalties_first: bool = False
    order: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, low, high in LIMITS:
            check_range(name, getattr(self, name), low, high, whole=name in WHOLE)
        unknown = [name for name in self.order if name not in ORDER]
        if unknown or len(set(self.order)) < len(self.order):
            raise ValueError(f"order must name each sampler once, of {', '.join(ORDER)}, got {self.order!r}")

    @classmethod
    def names(cls) -> list[str]:
        return [field.name for field in fields(cls)]

    @property
    def neutral(self) -> bool:
        return self == NEUTRAL

    def without_filters(self) -> Self:
        """What is left of it where the likeliest id is chosen."""
        kept = {"repetition_range", "repetition_slope", "no_repeat_ngram_size", "penalties_first"}
        kept |= {name for name in self.names() if name.startswith("dry_")}
        return type(self)(**{name: getattr(self, name) for name in kept})


LIMITS: tuple[tuple[str, float, float], ...] = (
    ("top_n_sigma", 0, 1000),
    ("top_a", 0, 1),
    ("epsilon_cutoff", 0, 1),
    ("eta_cutoff", 0, 1),
    ("smoothing_factor", 0, 100),
    ("smoothing_curve", 1, 100),
    ("xtc_threshold", 0, 1),
    ("xtc_probability", 0, 1),
    ("dynatemp_range", 0, 100),
    ("dynatemp_exponent", 0, 100),
    ("skew", -10, 10),
    ("mirostat_tau", 0, 100),
    ("mirostat_eta", 0, 1),
    ("repetition_range", 0, MAX_LOOK_BACK),
    ("repetition_slope", 0, 1),
    ("no_repeat_ngram_size", 0, MAX_REPEAT),
    ("dry_multiplier", 0, 100),
    ("dry_base", 1, 100),
    ("dry_allowed_length", 1, MAX_REPEAT),
    ("dry_range", 0, MAX_LOOK_BACK),
)
NEUTRAL = Samplers()

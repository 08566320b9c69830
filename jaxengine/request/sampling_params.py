"""How one request wants its tokens sampled: the engine's side of every sampling option, validated on construction.

The engine trusts no caller. A NaN or an id outside the vocabulary must not reach a device array, because JAX would turn
it into a wrong answer instead of an error.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxengine.request.ranges import check_range
from jaxengine.request.samplers import NEUTRAL, ORDER, Samplers
from jaxengine.rpc.limits import MAX_BAD_WORD_IDS, MAX_BAD_WORDS, MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS

MAX_EOS_TOKEN_IDS = 32  # of a model; the most known so far are Llama 3's three
INTEGERS = {"max_tokens", "min_tokens", "top_k", "logprobs", "seed"}
MAX_BIAS = 10_000  # beyond it f32 has too few digits left for the logits themselves; less it is a ban


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """The defaults sample from the model's plain distribution; `temperature=0` is greedy.

    frequency_over_length: False is OpenAI's rule (penalty x count over generated ids), True is TGI's (penalty x count /
        length over prompt and generated ids).
    logit_bias: added to the logits; -MAX_BIAS is a ban, which only a grammar overrules that leaves nothing else.
    only_biased: ids without an entry in logit_bias (which may be 0) cannot be sampled.
    processed_logprobs: False reports the model's own log-softmax, True the distribution after penalties, temperature
        and filters.
    watermark_gamma: share of the vocabulary whose logits get `watermark_delta`; the share is redrawn after each token.
    bad_words: sequences of ids that the generated ids never contain.

    Raises:
        ValueError: a value is out of range or not finite; the message names field, value and limit.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    typical_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    frequency_over_length: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    only_biased: bool = False
    bad_words: tuple[tuple[int, ...], ...] = ()
    watermark_gamma: float = 0.0
    watermark_delta: float = 0.0
    seed: int | None = None
    logprobs: int = 0
    processed_logprobs: bool = False
    prompt_logprobs: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    samplers: Samplers = NEUTRAL

    def __post_init__(self) -> None:
        self._check("max_tokens", 1, math.inf)
        self._check("min_tokens", 0, self.max_tokens)
        self._check("temperature", 0, 100)
        self._check("top_k", 0, 2**31 - 1)
        self._check("top_p", 0, 1, above=True)
        self._check("typical_p", 0, 1, above=True)
        self._check("min_p", 0, 1)
        self._check("repetition_penalty", 1e-4, 1e4)
        self._check("frequency_penalty", -100, 100)
        self._check("presence_penalty", -100, 100)
        self._check("watermark_gamma", 0, 1)
        self._check("watermark_delta", -100, 100)
        self._check("logprobs", 0, 1000)
        if self.seed is not None:
            self._check("seed", 0, 2**64 - 1)
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise ValueError(f"stop_token_ids has {len(self.stop_token_ids)} entries, at most {MAX_STOP_TOKEN_IDS}")
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise ValueError(f"logit_bias has {len(self.logit_bias)} entries, at most {MAX_LOGIT_BIAS}")
        if self.only_biased and not self.logit_bias:
            raise ValueError("only_biased needs a logit_bias, or no id could be drawn")
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise ValueError(f"bad_words has {len(self.bad_words)} entries, at most {MAX_BAD_WORDS}")
        unfit = next((word for word in self.bad_words if not 1 <= len(word) <= MAX_BAD_WORD_IDS), None)
        if unfit is not None:
            raise ValueError(f"each of bad_words must have 1 to {MAX_BAD_WORD_IDS} ids, got {len(unfit)}")
        if self.bad_words and self.only_biased:
            raise ValueError("bad_words and only_biased exclude each other, or no id might be left to draw")
        wrong = next((bias for bias in self.logit_bias.values() if not abs(bias) <= MAX_BIAS), None)
        if wrong is not None:
            raise ValueError(f"logit_bias values must be in [-{MAX_BIAS}, {MAX_BIAS}], got {wrong}")
        for name, ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("logit_bias", self.logit_bias),
            ("dry_breakers", self.samplers.dry_breakers),
            *(("bad_words", word) for word in self.bad_words),
        ):
            if not all(isinstance(i, int) for i in ids):
                raise ValueError(f"{name} must be of token ids, got {ids!r}")

    def _check(self, name: str, low: float, high: float, *, above: bool = False) -> None:
        check_range(name, getattr(self, name), low, high, whole=name in INTEGERS, above=above)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether the logits depend on the ids so far."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    @property
    def looks_back(self) -> bool:
        """Whether the logits depend on the order of the ids so far."""
        samplers = self.samplers
        ranged = self.penalised and samplers.repetition_range > 0
        return ranged or samplers.no_repeat_ngram_size > 0 or samplers.dry_multiplier > 0

    @property
    def first_temperature(self) -> float:
        """What divides the logits in front of all filters; 0 for the likeliest id."""
        return self.temperature if self.greedy or self._begins_with_temperature else 1.0

    @property
    def filters(self) -> list[str]:
        """Those of ORDER that act behind `first_temperature`, in their order."""
        if self.greedy:  # the likeliest id is sampled, alone and among others: no filter may take it away
            return []
        return self._chain[1:] if self._begins_with_temperature else self._chain

    @property
    def _begins_with_temperature(self) -> bool:
        return self._chain[:1] == ["temperature"] and self.samplers.dynatemp_range == 0

    @property
    def _chain(self) -> list[str]:
        acting = [name for name in self.samplers.order or ORDER if self._acts(name)]
        if "mirostat" in acting:  # which is told how surprising what is drawn is, so it is the last
            return [name for name in ("temperature", "mirostat") if name in acting]
        return acting

    def _acts(self, name: str) -> bool:
        samplers = self.samplers
        match name:
            case "temperature":
                return self.temperature != 1 or samplers.dynatemp_range > 0
            case "top_p" | "typical_p":
                return bool(getattr(self, name) < 1)
            case "top_k" | "min_p":
                return bool(getattr(self, name) > 0)
            case "xtc":
                return samplers.xtc_probability > 0 and samplers.xtc_threshold <= 0.5
            case "mirostat":
                return samplers.mirostat_tau > 0
        return bool(getattr(samplers, name) != 0)

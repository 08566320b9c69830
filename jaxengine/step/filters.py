"""What narrows or bends a sample's distribution, on the device: one filter after the other, in each sample's own order.

The host writes the order of a sample as a queue of four-bit numbers: the filters that act, and no others. The device
runs the filters at the head of the queues until all are empty. So a step without any runs none, and samples of one
order share their runs. No vocabulary is sorted, see `threshold`.
Legend: N samples, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.request.samplers import ORDER
from jaxengine.step.buffer import QUEUE_BITS, SampleFields
from jaxengine.step.noise import chance
from jaxengine.step.sampler_state import FilterValues, SamplerState

COLDEST = 1e-6  # a dynamic temperature of 0 would divide by it
NATS_PER_BIT = 0.6931471805599453
AT_HEAD = (1 << QUEUE_BITS) - 1


class Asked(NamedTuple):
    """What a filter may read besides the scores: [N, 1] each, but for `samples` [N] and `number`."""

    samples: SampleFields
    values: FilterValues  # f32
    surprise: Array  # f32, mirostat's bound, in bits
    number: Array  # i32 [], the filter's place in ORDER, counted from 1
    best: Array  # f32, the highest score
    above: Array  # f32, logsumexp of the scores less the best
    entropy: Array  # f32, in nats

    def logp(self, scores: Array) -> Array:
        return scores - self.best - self.above

    def p(self, scores: Array) -> Array:
        return jnp.exp(self.logp(scores))


class Filtered(NamedTuple):
    scores: Array  # f32 [N, V], -inf where filtered out
    total: Array  # f32 [N], logsumexp of the scores that mirostat left


class _Carry(NamedTuple):
    filtered: Filtered
    low: Array  # u32 [N], the queue's first half
    high: Array  # u32 [N]


def narrow(scores: Array, samples: SampleFields, state: SamplerState) -> Filtered:
    """f32 `scores` [N, V] behind the filters of each sample."""

    def unfinished(carry: _Carry) -> Array:
        return jnp.any(carry.low != 0)

    def one(carry: _Carry) -> _Carry:
        head = carry.low & AT_HEAD
        here = jnp.min(jnp.where(head > 0, head, len(ORDER)))  # in the common order each filter runs once
        number = here.astype(jnp.int32)
        asked = _asked(carry.filtered.scores, number, samples, state)
        changed = jax.lax.switch(jnp.array(PLACES)[number - 1], RUNS, carry.filtered.scores, asked)
        at = head == here
        filtered = Filtered(
            jnp.where(at[:, None], changed.scores, carry.filtered.scores),
            jnp.where(at, changed.total, carry.filtered.total),
        )
        low, high = carry.low >> QUEUE_BITS | carry.high << (32 - QUEUE_BITS), carry.high >> QUEUE_BITS
        return _Carry(filtered, jnp.where(at, low, carry.low), jnp.where(at, high, carry.high))

    low, high = (jax.lax.bitcast_convert_type(half, jnp.uint32) for half in (samples.queue_low, samples.queue_high))
    start = _Carry(Filtered(scores, jnp.zeros(scores.shape[0])), low, high)
    return jax.lax.while_loop(unfinished, one, start).filtered


def _asked(scores: Array, number: Array, samples: SampleFields, state: SamplerState) -> Asked:
    """What filters share is computed once for all: as a part of each, it was a quarter of what XLA compiles."""
    values = FilterValues(*state.values[samples.slot].T[:, :, None])
    best = _best(scores)
    below = scores - best
    weights = jnp.exp(below)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weighted = jnp.sum(jnp.where(weights > 0, weights * below, 0), axis=-1, keepdims=True)
    above = jnp.log(total)
    surprise = state.surprise[samples.slot][:, None]
    return Asked(samples, values, surprise, number, best, above, above - weighted / total)


def cooled(scores: Array, temperature: Array) -> Array:
    """`scores` less the best, over `temperature` [N, 1]: a quotient that overflows must be -inf, which is greedy, not
    +inf.
    """
    return (scores - _best(scores)) / temperature


def next_surprise(filtered: Filtered, ids: Array, samples: SampleFields, state: SamplerState) -> Array:
    """f32 [N]: mirostat's bound once `ids` are sampled of what it left."""
    values = FilterValues(*state.values[samples.slot].T)
    chosen = jnp.take_along_axis(filtered.scores, ids[:, None], axis=-1)[:, 0]
    error = (filtered.total - chosen) / NATS_PER_BIT - values.mirostat_tau
    bound = state.surprise[samples.slot]
    return jnp.where(values.mirostat_tau > 0, bound - values.mirostat_eta * error, bound)


# --- filters: scores [N, V] of all samples, of which the result counts for those that ask ---------------------------


def _temperature(scores: Array, asked: Asked) -> Array:
    """Entropy-based, where `low` and `high` differ (llama.cpp's `temp_ext`)."""
    low, high = asked.values.temperature_low, asked.values.temperature_high
    most = jnp.log(jnp.maximum(jnp.sum(scores > -jnp.inf, axis=-1, keepdims=True), 2))
    share = jnp.clip(asked.entropy / most, 0, 1)
    temperature = low + (high - low) * share**asked.values.temperature_exponent
    return (scores - asked.best) / jnp.maximum(temperature, COLDEST)


def _top_n_sigma(scores: Array, asked: Asked) -> Array:
    """Tang et al. 2024 (arXiv 2411.07641)."""
    left = scores > -jnp.inf
    count = jnp.sum(left, axis=-1, keepdims=True)
    mean = jnp.sum(jnp.where(left, scores, 0), axis=-1, keepdims=True) / count
    variance = jnp.sum(jnp.where(left, (scores - mean) ** 2, 0), axis=-1, keepdims=True) / count
    return _keep(scores, scores >= asked.best - asked.values.top_n_sigma * jnp.sqrt(variance))


def _top_a(scores: Array, asked: Asked) -> Array:
    """p ≥ a·(max p)², of KoboldAI."""
    return _keep(scores, asked.logp(scores) >= jnp.log(asked.values.top_a) - 2 * asked.above)


def _epsilon_cutoff(scores: Array, asked: Asked) -> Array:
    return _likelier(scores, asked, asked.values.epsilon_cutoff)


def _eta_cutoff(scores: Array, asked: Asked) -> Array:
    """Hewitt et al. 2022 (arXiv 2210.15191)."""
    eta = asked.values.eta_cutoff
    return _likelier(scores, asked, jnp.minimum(eta, jnp.sqrt(eta) * jnp.exp(-asked.entropy)))


def _smoothing(scores: Array, asked: Asked) -> Array:
    """Quadratic, and cubic where the curve is above 1 (Aphrodite)."""
    factor, curve = asked.values.smoothing_factor, asked.values.smoothing_curve
    below = jnp.where(scores > -jnp.inf, scores - asked.best, 0)
    bent = below**2 * (factor * (curve - 1) / 2 * below - factor * (3 - curve) / 2)
    return _keep(bent, scores > -jnp.inf)  # not + best, beside which small differences would round off


def _xtc(scores: Array, asked: Asked) -> Array:
    """llama.cpp's: of all that are likely enough the least likely stays."""
    likely = (asked.p(scores) >= asked.values.xtc_threshold) & (scores > -jnp.inf)
    least = jnp.min(jnp.where(likely, scores, jnp.inf), axis=-1, keepdims=True)  # of scores: other p may round to one
    drawn = chance(asked.samples)[:, None] < asked.values.xtc_probability
    return _keep(scores, ~(drawn & likely & (scores > least)))


def _fewest(scores: Array, asked: Asked) -> Array:
    """Top-k, top-p (Holtzman et al. 2020, arXiv 1904.09751) and typical-p (Meister et al. 2023, arXiv 2202.00666): the
    fewest ids, from one end of an order, whose weights reach what is wanted.
    """
    samples, logp = asked.samples, asked.logp(scores)
    counts, typical = asked.number == TOP_K, asked.number == TYPICAL
    keys = _ordered(jnp.where(typical, -jnp.abs(logp + asked.entropy), scores))
    weights = jnp.where(counts, 1, jnp.exp(logp))
    wanted = jnp.where(counts, samples.top_k, jnp.where(typical, samples.typical_p, samples.top_p))
    return _keep(scores, keys >= threshold(keys, weights, wanted)[:, None])


def _min_p(scores: Array, asked: Asked) -> Array:
    return _keep(scores, scores >= asked.best + jnp.log(asked.samples.min_p)[:, None])


def _skew(scores: Array, asked: Asked) -> Array:
    """The sums of probabilities in the order of ids, to the power exp(skew) (Aphrodite)."""
    total = jnp.cumsum(asked.p(scores), axis=-1)
    bent = jnp.minimum(total, 1) ** jnp.exp(asked.values.skew)
    p = jnp.diff(bent, axis=-1, prepend=0)
    return _keep(jnp.log(jnp.maximum(p, 0)), scores > -jnp.inf)


def _mirostat(scores: Array, asked: Asked) -> Array:
    """Version 2 of Basu et al. 2020 (arXiv 2007.14966), as llama.cpp has it."""
    return _likelier(scores, asked, jnp.exp(-asked.surprise * NATS_PER_BIT))


FILTERS: dict[str, Callable[[Array, Asked], Array]] = {
    "temperature": _temperature,
    "top_n_sigma": _top_n_sigma,
    "top_a": _top_a,
    "epsilon_cutoff": _epsilon_cutoff,
    "eta_cutoff": _eta_cutoff,
    "smoothing_factor": _smoothing,
    "xtc": _xtc,
    "top_k": _fewest,
    "top_p": _fewest,
    "typical_p": _fewest,
    "min_p": _min_p,
    "skew": _skew,
    "mirostat": _mirostat,
}
DIFFERENT = list(dict.fromkeys(FILTERS[name] for name in ORDER))
PLACES = [DIFFERENT.index(FILTERS[name]) for name in ORDER]
TOP_K, TYPICAL = (1 + ORDER.index(name) for name in ("top_k", "typical_p"))


def _run(narrowing: Callable[[Array, Asked], Array]) -> Callable[[Array, Asked], Filtered]:
    def run(scores: Array, asked: Asked) -> Filtered:
        scores = narrowing(scores, asked)
        total = jax.nn.logsumexp(scores, axis=-1) if narrowing is _mirostat else jnp.zeros(scores.shape[0])
        return Filtered(scores, total)

    return run


RUNS = tuple(map(_run, DIFFERENT))


def _best(scores: Array) -> Array:
    return scores.max(axis=-1, keepdims=True)


def _keep(scores: Array, which: Array) -> Array:
    return jnp.where(which, scores, -jnp.inf)


def _likelier(scores: Array, asked: Asked, p: Array) -> Array:
    """Those of a probability of at least `p` [N, 1], and the best."""
    return _keep(scores, (asked.p(scores) >= p) | (scores == asked.best))


def _ordered(values: Array) -> Array:
    """u32 keys in the order of f32 `values`."""
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def threshold(keys: Array, weights: Array, wanted: Array) -> Array:
    """The largest u32 [N] such that the `weights` of the `keys` [N, V] at or above it reach `wanted` [N]: found bit by
    bit in 32 counting passes, exactly. Ties with it are kept.

    Never above the largest key: a `wanted` below the smallest f32 is 0, which no key at all would reach too.
    """

    def bit(i: Array, found: Array) -> Array:
        candidate = found | (jnp.uint32(1 << 31) >> i.astype(jnp.uint32))
        reached = jnp.sum(jnp.where(keys >= candidate[:, None], weights, 0), axis=-1) >= wanted
        return jnp.where(reached, candidate, found)

    found = jax.lax.fori_loop(0, 32, bit, jnp.zeros(keys.shape[0], jnp.uint32))
    return jnp.minimum(found, keys.max(axis=-1))

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
    """What a filter may read besides the scores."""

    samples: SampleFields
    values: FilterValues  # f32 [N] each
    surprise: Array  # f32 [N], mirostat's bound, in bits


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
        asked = Asked(samples, FilterValues(*state.values[samples.slot].T), state.surprise[samples.slot])
        changed = jax.lax.switch(here.astype(jnp.int32) - 1, RUNS, carry.filtered.scores, asked)
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
    most = jnp.log(jnp.maximum(jnp.sum(scores > -jnp.inf, axis=-1), 2))
    share = jnp.clip(_entropy(scores) / most, 0, 1)
    temperature = low + (high - low) * share**asked.values.temperature_exponent
    return cooled(scores, jnp.maximum(temperature, COLDEST)[:, None])


def _top_n_sigma(scores: Array, asked: Asked) -> Array:
    """Tang et al. 2024 (arXiv 2411.07641)."""
    left = scores > -jnp.inf
    count = jnp.sum(left, axis=-1, keepdims=True)
    mean = jnp.sum(jnp.where(left, scores, 0), axis=-1, keepdims=True) / count
    variance = jnp.sum(jnp.where(left, (scores - mean) ** 2, 0), axis=-1, keepdims=True) / count
    return _above(scores, _best(scores) - asked.values.top_n_sigma[:, None] * jnp.sqrt(variance))


def _top_a(scores: Array, asked: Asked) -> Array:
    """p ≥ a·(max p)², of KoboldAI."""
    logp = jax.nn.log_softmax(scores)
    return jnp.where(logp >= jnp.log(asked.values.top_a)[:, None] + 2 * _best(logp), scores, -jnp.inf)


def _epsilon_cutoff(scores: Array, asked: Asked) -> Array:
    return _likelier(scores, asked.values.epsilon_cutoff)


def _eta_cutoff(scores: Array, asked: Asked) -> Array:
    """Hewitt et al. 2022 (arXiv 2210.15191)."""
    eta = asked.values.eta_cutoff
    return _likelier(scores, jnp.minimum(eta, jnp.sqrt(eta) * jnp.exp(-_entropy(scores))))


def _smoothing(scores: Array, asked: Asked) -> Array:
    """Quadratic, and cubic where the curve is above 1 (Aphrodite)."""
    factor, curve = asked.values.smoothing_factor[:, None], asked.values.smoothing_curve[:, None]
    best = _best(scores)
    below = jnp.where(scores > -jnp.inf, scores - best, 0)
    bent = below**2 * (factor * (curve - 1) / 2 * below - factor * (3 - curve) / 2)
    return jnp.where(scores > -jnp.inf, bent, -jnp.inf)  # not + best, beside which small differences would round off


def _xtc(scores: Array, asked: Asked) -> Array:
    """llama.cpp's: of all that are likely enough the least likely stays."""
    likely = (jax.nn.softmax(scores) >= asked.values.xtc_threshold[:, None]) & (scores > -jnp.inf)
    least = jnp.min(jnp.where(likely, scores, jnp.inf), axis=-1, keepdims=True)  # of scores: other p may round to one
    drawn = chance(asked.samples) < asked.values.xtc_probability
    return jnp.where(drawn[:, None] & likely & (scores > least), -jnp.inf, scores)


def _top_k(scores: Array, asked: Asked) -> Array:
    keys = _ordered(scores)
    return _keep(scores, keys, threshold(keys, jnp.ones_like(scores), asked.samples.top_k))


def _top_p(scores: Array, asked: Asked) -> Array:
    """Holtzman et al. 2020 (arXiv 1904.09751)."""
    keys = _ordered(scores)
    return _keep(scores, keys, threshold(keys, jax.nn.softmax(scores), asked.samples.top_p))


def _typical(scores: Array, asked: Asked) -> Array:
    """Meister et al. 2023 (arXiv 2202.00666)."""
    logp = jax.nn.log_softmax(scores)
    keys = _ordered(-jnp.abs(logp + _entropy(scores)[:, None]))
    return _keep(scores, keys, threshold(keys, jnp.exp(logp), asked.samples.typical_p))


def _min_p(scores: Array, asked: Asked) -> Array:
    return _above(scores, _best(scores) + jnp.log(asked.samples.min_p)[:, None])


def _skew(scores: Array, asked: Asked) -> Array:
    """The sums of probabilities in the order of ids, to the power exp(skew) (Aphrodite)."""
    total = jnp.cumsum(jax.nn.softmax(scores), axis=-1)
    bent = jnp.minimum(total, 1) ** jnp.exp(asked.values.skew)[:, None]
    p = jnp.diff(bent, axis=-1, prepend=0)
    return jnp.where(scores > -jnp.inf, jnp.log(jnp.maximum(p, 0)), -jnp.inf)


def _mirostat(scores: Array, asked: Asked) -> Array:
    """Version 2 of Basu et al. 2020 (arXiv 2007.14966), as llama.cpp has it."""
    return _likelier(scores, jnp.exp(-asked.surprise * NATS_PER_BIT))


FILTERS: tuple[Callable[[Array, Asked], Array], ...] = (
    _temperature,
    _top_n_sigma,
    _top_a,
    _epsilon_cutoff,
    _eta_cutoff,
    _smoothing,
    _xtc,
    _top_k,
    _top_p,
    _typical,
    _min_p,
    _skew,
    _mirostat,
)


def _run(narrowing: Callable[[Array, Asked], Array]) -> Callable[[Array, Asked], Filtered]:
    def run(scores: Array, asked: Asked) -> Filtered:
        scores = narrowing(scores, asked)
        total = jax.nn.logsumexp(scores, axis=-1) if narrowing is _mirostat else jnp.zeros(scores.shape[0])
        return Filtered(scores, total)

    return run


RUNS = tuple(map(_run, FILTERS))


def _best(scores: Array) -> Array:
    return scores.max(axis=-1, keepdims=True)


def _entropy(scores: Array) -> Array:
    """f32 [N], in nats."""
    logp = jax.nn.log_softmax(scores)
    p = jnp.exp(logp)
    return -jnp.sum(jnp.where(p > 0, p * logp, 0), axis=-1)


def _above(scores: Array, floor: Array) -> Array:
    return jnp.where(scores >= floor, scores, -jnp.inf)


def _likelier(scores: Array, p: Array) -> Array:
    """Those of a probability of at least `p` [N], and the best."""
    kept = (jax.nn.softmax(scores) >= p[:, None]) | (scores == _best(scores))
    return jnp.where(kept, scores, -jnp.inf)


def _keep(scores: Array, keys: Array, least: Array) -> Array:
    return jnp.where(keys >= least[:, None], scores, -jnp.inf)


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

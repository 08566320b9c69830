"""The filters' formulas in NumPy, in float64 and with vocabularies sorted: nothing is shared with the device's code.

A float32 sampler cannot tell on which side of a threshold lies what is closer to it than its own rounding. So each
formula takes a `Shift`: float32 may have the outcomes of thresholds within `CLOSE` of the exact one, and no others.
x are logits, f64 [V], -inf where an id was dropped; p their softmax.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

CLOSE = 1e-5  # relative to a threshold
# By how much of 1 + itself an f32 entropy may be off: llama.cpp sums 1,000 terms one after the other, also those beside
# which it divides; next to p = 1 that is all that the entropy consists of.
SUMMED = 1000 * 2**-24


class Shift(NamedTuple):
    """What a threshold is multiplied by, and which way an entropy is off: -1, 0 or 1."""

    threshold: float = 1.0
    entropy: int = 0


EXACT = Shift()
THRESHOLDS, ENTROPIES = (1.0, 1 - CLOSE, 1 + CLOSE), (0, -1, 1)
BY_ENTROPY = ("temperature", "typical_p", "eta_cutoff")


class Step(NamedTuple):
    """A sampler by its name in ORDER, and what it is told."""

    name: str
    arguments: tuple[float, ...]


def log_softmax(x: np.ndarray) -> np.ndarray:
    """f64 [..., V]"""
    x = x.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def behind(x: np.ndarray, steps: Sequence[Step], shifts: Sequence[Shift] = ()) -> np.ndarray:
    """The logits behind `steps`, each with its own shift."""
    x = x.astype(np.float64)
    for step, shift in zip(steps, shifts or [EXACT] * len(steps), strict=True):
        x = FORMULAS[step.name](x, *step.arguments, shift)
    return x


def outcomes(x: np.ndarray, steps: Sequence[Step]) -> Iterator[np.ndarray]:
    """What float32 may make of it, the exact first."""
    for shifts in product(*map(shifts_of, steps)):
        yield behind(x, steps, shifts)


def shifts_of(step: Step) -> list[Shift]:
    thresholds = (1.0,) if step.name == "temperature" else THRESHOLDS
    return [Shift(*shift) for shift in product(thresholds, ENTROPIES if step.name in BY_ENTROPY else (0,))]


def entropy(x: np.ndarray, shift: Shift = EXACT) -> float:
    logp = log_softmax(x)
    exact = -float(np.sum(np.exp(logp) * np.where(logp > -np.inf, logp, 0)))
    return exact + shift.entropy * SUMMED * (1 + exact)


def kept(x: np.ndarray, which: np.ndarray) -> np.ndarray:
    return np.where(which, x, -np.inf)


def temperature(x: np.ndarray, middle: float, reach: float, exponent: float, shift: Shift) -> np.ndarray:
    low, high = max(0.0, middle - reach), middle + reach
    count = np.isfinite(x).sum()
    share = np.clip(entropy(x, shift) / np.log(max(count, 2)), 0, 1)
    return x / max(low + (high - low) * share**exponent, 1e-30)


def top_n_sigma(x: np.ndarray, n: float, shift: Shift) -> np.ndarray:
    below = x - x.max()
    return kept(x, below >= -n * np.std(x[np.isfinite(x)]) * shift.threshold)


def top_a(x: np.ndarray, a: float, shift: Shift) -> np.ndarray:
    p = np.exp(log_softmax(x))
    return kept(x, p >= a * p.max() ** 2 * shift.threshold)


def epsilon_cutoff(x: np.ndarray, epsilon: float, shift: Shift) -> np.ndarray:
    return kept(x, (np.exp(log_softmax(x)) >= epsilon * shift.threshold) | (x == x.max()))


def eta_cutoff(x: np.ndarray, eta: float, shift: Shift) -> np.ndarray:
    return epsilon_cutoff(x, min(eta, np.sqrt(eta) * np.exp(-entropy(x, shift))), shift)


def smoothing_factor(x: np.ndarray, factor: float, curve: float, shift: Shift) -> np.ndarray:
    k, g = factor * (3 - curve) / 2, factor * (curve - 1) / 2
    d = np.where(np.isfinite(x), x - x.max(), 0)
    return kept(x.max() + d**2 * (g * d - k), np.isfinite(x))


def xtc(x: np.ndarray, probability: float, least: float, shift: Shift) -> np.ndarray:
    assert probability == 1
    p = np.exp(log_softmax(x))
    likely = (p >= least * shift.threshold) & np.isfinite(x)
    return x if not likely.any() else kept(x, ~likely | (x == x[likely].min()))


def top_k(x: np.ndarray, k: float, shift: Shift) -> np.ndarray:
    return kept(x, x >= np.sort(x)[-min(int(k), len(x))])


def likeliest(x: np.ndarray, keys: np.ndarray, mass: float, shift: Shift) -> np.ndarray:
    """The ids of the highest keys that have `mass` together, and all of the last one's key, to float32's rounding."""
    order = np.argsort(-keys, kind="stable")
    before = np.cumsum(np.exp(log_softmax(x))[order]) - np.exp(log_softmax(x))[order]
    least = keys[order[max(np.sum(before < mass * shift.threshold), 1) - 1]]
    return kept(x, keys >= least - max(shift.threshold - 1, 0) * max(abs(least), 1))


def top_p(x: np.ndarray, mass: float, shift: Shift) -> np.ndarray:
    return likeliest(x, x - x.max(), mass, shift)


def typical_p(x: np.ndarray, mass: float, shift: Shift) -> np.ndarray:
    return likeliest(x, -np.abs(log_softmax(x) + entropy(x, shift)), mass, shift)


def min_p(x: np.ndarray, share: float, shift: Shift) -> np.ndarray:
    return kept(x, np.exp(x - x.max()) >= share * shift.threshold)


def skew(x: np.ndarray, power: float, shift: Shift) -> np.ndarray:
    c = np.cumsum(np.exp(log_softmax(x)))
    p = np.diff(np.minimum(c, 1) ** np.exp(power), prepend=0)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(p, 0))


def mirostat(x: np.ndarray, tau: float, eta: float, bound: float, shift: Shift) -> np.ndarray:
    return epsilon_cutoff(x, 2**-bound, shift)


def next_bound(x: np.ndarray, id: int, tau: float, eta: float, bound: float) -> float:
    """Mirostat's, once `id` is drawn from what it left, x."""
    return bound - eta * (-log_softmax(x)[id] / np.log(2) - tau)


FORMULAS: dict[str, Callable[..., np.ndarray]] = {
    "temperature": temperature,
    "top_n_sigma": top_n_sigma,
    "top_a": top_a,
    "epsilon_cutoff": epsilon_cutoff,
    "eta_cutoff": eta_cutoff,
    "smoothing_factor": smoothing_factor,
    "xtc": xtc,
    "top_k": top_k,
    "top_p": top_p,
    "typical_p": typical_p,
    "min_p": min_p,
    "skew": skew,
    "mirostat": mirostat,
}

"""Random rows of logits of every kind, each with parameters of its own, and how two samplers' answers are compared."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxengine.request import sequence
from jaxengine.request.samplers import Samplers
from jaxengine.request.sampling_params import SamplingParams
from tests.jaxengine.sampler import LONGEST, history, processed
from tests.jaxengine.sampler_formulas import Step, log_softmax, outcomes

VOCABULARIES = (17, 257, 1000)
ROWS = 512  # of a batch
ALONE, TOGETHER = 2, 7  # batches of a vocabulary: 3,072 rows in all of one sampler, 10,752 of several in any order
ABSOLUTE, RELATIVE = 1e-4, 2e-5  # what float32 may be off by in a log-probability
FAINT = -80.0  # log-probabilities below are 0 as float32 probabilities

MOST_UNDECIDED = 0.005  # of all rows, far above what there are: a wrong rule would not hide behind rounding

Random = np.random.Generator
Steps = Sequence[Step]
Asked = dict[str, Any]
Values = Callable[[Random], tuple[float, ...]]


class Rows(NamedTuple):
    """Of one vocabulary."""

    logits: np.ndarray  # f32 [N, V]
    steps: Sequence[Steps]


def random_rows(
    seed: int, steps_of: Callable[[Random], Steps], ties: bool = True, batches: int = ALONE
) -> Iterator[Rows]:
    random = np.random.default_rng(seed)
    for vocab in VOCABULARIES:
        logits = random_logits(random, vocab, batches * ROWS, ties)
        yield Rows(logits, [steps_of(random) for _ in logits])


def logarithmic(random: Random, low: float, high: float) -> float:
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


def random_logits(random: Random, vocab: int, count: int, ties: bool = True) -> np.ndarray:
    """f32 [count, V]"""
    return np.stack([row_of_logits(random, vocab, ties) for _ in range(count)])


def row_of_logits(random: Random, vocab: int, ties: bool = True) -> np.ndarray:
    """f32 [V]: from flat to peaked; one in four with masked ids, one in six with many equal ones."""
    spread = logarithmic(random, 0.05, 20)
    row = random.normal(random.uniform(-10, 10), spread, vocab)
    if ties and random.random() < 1 / 6:
        row = np.round(row / spread) * spread
    if random.random() < 1 / 4:
        masked = random.random(vocab) < random.choice([0.1, 0.9, 1])
        masked[random.integers(vocab)] = False
        row[masked] = -np.inf
    return row.astype(np.float32)


def plain_temperature(random: Random) -> tuple[float, ...]:
    return logarithmic(random, 0.2, 5), 0.0, 1.0


def temperature(random: Random) -> tuple[float, ...]:
    """A dynamic one in half of the rows, its lower end well above 0."""
    middle = logarithmic(random, 0.2, 5)
    reach = 0.0 if random.random() < 0.5 else random.uniform(0.1, 0.8) * middle
    return middle, reach, logarithmic(random, 0.3, 3)


RANGES: dict[str, Values] = {
    "temperature": temperature,
    "top_n_sigma": lambda random: (random.uniform(0.05, 4),),
    "top_a": lambda random: (logarithmic(random, 1e-4, 1),),
    "epsilon_cutoff": lambda random: (logarithmic(random, 1e-5, 0.9),),
    "eta_cutoff": lambda random: (logarithmic(random, 1e-5, 0.9),),
    "smoothing_factor": lambda random: (logarithmic(random, 0.005, 5), max(1.0, random.uniform(0, 4))),
    "xtc": lambda random: (1.0, logarithmic(random, 0.001, 0.6)),
    "top_k": lambda random: (int(logarithmic(random, 1, 1200)),),
    "top_p": lambda random: (random.uniform(0.01, 0.999),),
    "typical_p": lambda random: (random.uniform(0.01, 0.999),),
    "min_p": lambda random: (logarithmic(random, 1e-4, 1),),
    "skew": lambda random: (random.uniform(-2, 2),),
}


def sometimes(name: str, values: Values | None = None) -> Callable[[Random], Steps]:
    """In one row of five nothing is asked for."""
    values = values or RANGES[name]
    return lambda random: [Step(name, values(random))] if random.random() < 0.8 else []


def any_order(names: Sequence[str], most: int = 4, ranges: Mapping[str, Values] = RANGES) -> Callable[[Random], Steps]:
    """Up to `most` samplers, in a random order. Not typical and smoothing: of a flat row this makes log-probabilities
    that are equal in float32.
    """

    def steps_of(random: Random) -> Steps:
        chosen = random.permutation(names)[: random.integers(most + 1)].tolist()
        if "smoothing_factor" in chosen and "typical_p" in chosen:
            chosen.remove("typical_p")
        return [Step(name, ranges[name](random)) for name in chosen]

    return steps_of


ARGUMENTS: dict[str, Callable[..., Asked]] = {
    "temperature": lambda middle, reach, exponent: {
        "temperature": middle,
        "dynatemp_range": reach,
        "dynatemp_exponent": exponent,
    },
    "smoothing_factor": lambda factor, curve: {"smoothing_factor": factor, "smoothing_curve": curve},
    "xtc": lambda probability, threshold: {"xtc_probability": probability, "xtc_threshold": threshold},
    "mirostat": lambda tau, eta, bound: {"mirostat_tau": tau, "mirostat_eta": eta},
}


def params(**chosen: Any) -> SamplingParams:
    """The samplers' own parameters among the others."""
    samplers = {name: chosen.pop(name) for name in Samplers.names() if name in chosen}
    return SamplingParams(**{"seed": 5, "processed_logprobs": True, "samplers": Samplers(**samplers), **chosen})


def params_of(steps: Steps) -> SamplingParams:
    """A request for `steps`, in this order."""
    chosen: Asked = {"order": tuple(step.name for step in steps)}
    for name, arguments in steps:
        chosen |= ARGUMENTS[name](*arguments) if name in ARGUMENTS else {name: arguments[0]}
    return params(**chosen)


def ours(rows: Rows) -> np.ndarray:
    """Log-probabilities behind the steps, f64 [N, V]."""
    return in_batches(rows.logits, [history(params_of(steps)) for steps in rows.steps])


def in_batches(logits: np.ndarray, sequences: Sequence[sequence.Sequence]) -> np.ndarray:
    """`processed`, ROWS at once."""
    starts = range(0, len(logits), ROWS)
    batches = [processed(logits[start : start + ROWS], sequences[start : start + ROWS]) for start in starts]
    return log_softmax(np.concatenate(batches))


def assert_same(rows: Rows, ours: np.ndarray, theirs: np.ndarray, faintest: float = -np.inf) -> int:
    """That the same ids are kept, at the same log-probabilities; how many rows float32 cannot decide.

    Such a row is one of the outcomes that float64 has when thresholds are shifted by CLOSE.
    """
    ours, theirs = (np.maximum(each, faintest) for each in (ours, log_softmax(theirs)))
    differing = np.flatnonzero(~same(ours, theirs).all(axis=-1)).tolist()
    for row in differing:
        theirs[row] = log_softmax(with_ties(rows.logits[row], theirs[row]))
    undecided = [row for row in differing if not same(ours[row], theirs[row]).all()]
    for row in undecided:
        possible = np.stack(list(outcomes(rows.logits[row], rows.steps[row])))
        if faintest > -np.inf:
            possible = np.maximum(log_softmax(possible), faintest)
        for whose, answer in (("ours", ours[row]), ("theirs", theirs[row])):
            assert fits(answer, possible), f"{whose}, {rows.steps[row]}: {difference(answer, possible[0])}"
    return len(undecided)


def tolerance(logp: np.ndarray) -> np.ndarray:
    return ABSOLUTE + RELATIVE * np.abs(np.where(np.isfinite(logp), logp, 0))


def same(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return (ours == theirs) | (np.abs(ours - theirs) <= tolerance(theirs))


def with_ties(logits: np.ndarray, left: np.ndarray) -> np.ndarray:
    """`left` and the ids dropped whose logits are those of ids kept: who sorts cuts equals where they happen to lie."""
    ids = np.flatnonzero(np.isfinite(left))
    by_logit = dict(zip(logits[ids].tolist(), left[ids], strict=True))
    return np.array([by_logit.get(logit, -np.inf) for logit in logits.tolist()])


def fits(answer: np.ndarray, possible: np.ndarray) -> bool:
    """Whether log-probabilities, f64 [V], lie between those of `possible` logits [K, V]: they keep what all of these
    keep and nothing that none of them does.
    """
    ids = np.isfinite(answer)
    left = np.isfinite(possible)
    if (left.all(axis=0) & ~ids).any() or (~left.any(axis=0) & ids).any():
        return False
    alike = possible[(left == ids).all(axis=-1)]
    if not len(alike):  # several ids lie close to a threshold; what a filter keeps it does not change
        alike = np.where(left, possible, -np.inf).max(axis=0, keepdims=True)
    logp = log_softmax(alike[:, ids])
    low, high = logp.min(axis=0), logp.max(axis=0)
    off = tolerance(low)
    return bool(((answer[ids] >= low - off) & (answer[ids] <= high + off)).all())


def difference(answer: np.ndarray, exact: np.ndarray) -> str:
    exact = log_softmax(exact)
    ids = np.flatnonzero(~same(answer, exact))
    return ", ".join(f"id {id} {answer[id]:.6g} for {exact[id]:.6g}" for id in ids[:5]) + f" ({len(ids)} ids)"


class Texts(NamedTuple):
    """Rows that look back at a text of few different ids, and what they ask for."""

    logits: np.ndarray  # f32 [N, V]
    ids: list[list[int]]
    asked: list[Asked]


def random_texts(seed: int, asked_of: Callable[[Random, list[int]], Asked]) -> Iterator[Texts]:
    """What is asked for may name the ids of the text."""
    random = np.random.default_rng(seed)
    for vocab in VOCABULARIES:
        logits = random_logits(random, vocab, ALONE * ROWS)
        ids = [random_text(random, vocab) for _ in logits]
        yield Texts(logits, ids, [asked_of(random, text) for text in ids])


def dry(random: Random, ids: list[int]) -> Asked:
    """With up to two breakers, of which most stand in the text."""
    breakers = random.choice(np.array([*ids, 0]), random.integers(3))
    return {
        "dry_multiplier": random.uniform(0.1, 5),
        "dry_base": random.uniform(1, 3),
        "dry_allowed_length": int(random.integers(1, 6)),
        "dry_range": int(random.integers(1, 70)) if random.random() < 0.5 else 0,
        "dry_breakers": tuple(sorted(set(breakers.tolist()))),
    }


def random_text(random: Random, vocab: int) -> list[int]:
    """Of two to six different ids, half of them a motif again and again, with some ids replaced."""
    alphabet = random.integers(vocab, size=random.integers(2, 7))
    ids = random.choice(alphabet, random.integers(1, LONGEST))
    if random.random() < 0.5:
        ids = np.resize(ids[: random.integers(1, 9)], len(ids))
        replaced = random.random(len(ids)) < 0.05
        ids[replaced] = random.choice(alphabet, replaced.sum())
    return [int(id) for id in ids]


def ours_behind(texts: Texts, seed: int) -> np.ndarray:
    """Log-probabilities, f64 [N, V]; it is random how much of a text is the prompt."""
    random = np.random.default_rng(seed)
    sequences = []
    for ids, asked in zip(texts.ids, texts.asked, strict=True):
        prompt = int(random.integers(1, len(ids) + 1))
        sequences.append(history(params(**asked), ids[:prompt], ids[prompt:]))
    return in_batches(texts.logits, sequences)


def assert_close(ours: np.ndarray, theirs: np.ndarray, asked: Sequence[Any]) -> None:
    """That log-probabilities [N, V] are the same; `asked` says of what."""
    for row in np.flatnonzero(~same(ours, theirs).all(axis=-1)).tolist():
        raise AssertionError(f"row {row}, {asked[row]}: {difference(ours[row], theirs[row])}")

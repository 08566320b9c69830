"""Filters act in the order that each sample asks for, and on no other sample."""

import numpy as np
import pytest

from jaxengine.request.samplers import ORDER, Samplers
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.step.buffer import SampleFields
from tests.jaxengine.sampler import history, pack, processed, sample, sampler_state_of, state_after_sampling

VOCAB = 300
ALL = Samplers(
    top_n_sigma=2.5,
    top_a=0.02,
    epsilon_cutoff=0.001,
    eta_cutoff=0.002,
    smoothing_factor=0.1,
    xtc_threshold=0.2,
    xtc_probability=1.0,
    dynatemp_range=0.5,
    skew=0.2,
    dry_multiplier=1.0,
    no_repeat_ngram_size=3,
    repetition_range=4,
)
OTHERS = {"top_k": 100, "top_p": 0.95, "typical_p": 0.9, "min_p": 0.01, "temperature": 0.8, "repetition_penalty": 1.2}


def random_logits(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, VOCAB)).astype(np.float32)


def asking(samplers: Samplers, seed: int = 1, **others: float) -> SamplingParams:
    return SamplingParams(seed=seed, processed_logprobs=True, samplers=samplers, **others)  # type: ignore[arg-type]


def test_a_neighbour_changes_nothing() -> None:
    """Bit for bit: neither a plain sample beside others, nor others beside it."""
    ways = [
        SamplingParams(seed=5, processed_logprobs=True, temperature=0.9, top_p=0.8),
        SamplingParams(seed=6, processed_logprobs=True),
        SamplingParams(seed=7, processed_logprobs=True, temperature=0, frequency_penalty=1.0),
        asking(ALL, **OTHERS),
        asking(Samplers(mirostat_tau=3.0)),
        asking(Samplers(order=tuple(reversed(ORDER)), top_a=0.05), **OTHERS),
    ]
    texts = [([1, 2, 3, 1, 2], [row, 3, 1, 2]) for row in range(len(ways))]
    logits = random_logits(len(ways))
    together = sample(logits, [history(way, *text) for way, text in zip(ways, texts, strict=True)])
    for row, (way, text) in enumerate(zip(ways, texts, strict=True)):
        alone = sample(logits[row : row + 1], [history(way, *text)])
        assert alone.id[0] == together.id[row]
        np.testing.assert_array_equal(alone.top_logprob[0], together.top_logprob[row])


def test_filters_act_in_the_order_asked_for() -> None:
    """One that is last sees what those before have left: two orders of two filters are two distributions."""
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32))

    def left(*order: str) -> list[float]:
        params = asking(Samplers(order=order), top_k=2, top_p=0.55, temperature=1.0)
        return np.exp(processed(logits, [history(params)]))[0].tolist()  # type: ignore[no-any-return]

    assert left("top_k", "top_p") == [1.0, 0, 0, 0]  # of two, 0.4 / 0.7 = 0.571 is enough
    assert left("top_p", "top_k") == pytest.approx([4 / 7, 3 / 7, 0, 0], abs=1e-6)
    assert left("top_k") == pytest.approx([4 / 7, 3 / 7, 0, 0], abs=1e-6)


@pytest.mark.parametrize("order", [("temperature", "min_p"), ("min_p", "temperature"), ("min_p",)])
def test_the_temperature_acts_where_the_order_says(order: tuple[str, ...]) -> None:
    logits = np.log(np.array([[0.6, 0.3, 0.1]], np.float32))
    params = asking(Samplers(order=order), min_p=0.4, temperature=2.0)
    ours = np.exp(processed(logits, [history(params)]))[0].tolist()
    expected = {
        ("temperature", "min_p"): [0.473, 0.334, 0.193],  # 0.408 of the best is left to the last
        ("min_p", "temperature"): [0.586, 0.414, 0],
        ("min_p",): [0.667, 0.333, 0],
    }
    assert ours == pytest.approx(expected[order], abs=1e-3)


def test_greedy_samples_are_not_filtered() -> None:
    params = SamplingParams(seed=1, temperature=0, processed_logprobs=True, samplers=ALL)
    assert params.filters == []
    logits = random_logits(1)
    assert np.isfinite(processed(logits, [history(params)])).all()


def test_mirostat_acts_alone_and_its_bound_follows_the_surprise() -> None:
    """Version 2: ids of more than 2·tau bits at first; each token moves the bound by eta times its error."""
    p = np.array([[0.5, 0.25, 0.125, 0.0625, 0.0625]], np.float32)
    params = asking(Samplers(mirostat_tau=1.25, mirostat_eta=0.2), top_k=1, min_p=0.9)
    sequence = history(params)
    left = np.exp(processed(np.log(p), [sequence]))[0]
    np.testing.assert_allclose(left, np.array([4, 2, 0, 0, 0]) / 6, atol=1e-6)
    token = int(sample(np.log(p), [sequence]).id[0])
    surprise = {0: np.log2(6 / 4), 1: np.log2(6 / 2)}[token]
    bound = float(state_after_sampling(np.log(p), [sequence]).surprise[0])
    assert bound == pytest.approx(2.5 - 0.2 * (surprise - 1.25), abs=1e-5)


@pytest.mark.parametrize("threshold", [0.0, 0.2])
def test_xtc_leaves_the_least_likely_of_those_that_are_left(threshold: float) -> None:
    """What is masked is not likely, whatever the threshold."""
    logits = np.log(np.array([[0.4, 0.3, 0.3]], np.float32))
    logits[0, 2] = -np.inf
    sampled = sample(logits, [history(asking(Samplers(xtc_threshold=threshold, xtc_probability=1.0)))])
    assert (sampled.id[0], sampled.logprob[0]) == (1, 0)


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_mirostat_is_the_last_whatever_the_order(temperature: float) -> None:
    order = ("mirostat", "temperature")
    params = asking(Samplers(mirostat_tau=3.0, order=order), temperature=temperature)
    assert (params.first_temperature, params.filters) == (temperature, ["mirostat"])


def test_a_ban_is_no_logit() -> None:
    """The least bias there is takes an id out of what samplers look at."""
    logits = random_logits(1)
    logits[0, 7] = 20
    samplers = Samplers(top_n_sigma=1.0)
    banned = processed(logits, [history(asking(samplers, logit_bias={7: -10_000}))])  # type: ignore[arg-type]
    logits[0, 7] = -np.inf
    np.testing.assert_array_equal(banned, processed(logits, [history(asking(samplers))]))


def test_xtc_draws_anew_for_each_token_and_seed() -> None:
    logits = np.log(np.array([[0.5, 0.4, 0.1]], np.float32))
    samplers = Samplers(xtc_threshold=0.3, xtc_probability=0.3)
    rows = [history(asking(samplers, seed=seed), [1] * (1 + seed % 7)) for seed in range(4000)]
    dropped = np.isinf(processed(np.tile(logits, (4000, 1)), rows)[:, 0])
    assert dropped.mean() == pytest.approx(0.3, abs=0.025)
    assert not np.isinf(processed(np.tile(logits, (4000, 1)), rows)[:, 1:]).any()


def test_a_skew_never_lets_in_what_was_filtered_out() -> None:
    logits = random_logits(8, seed=3)
    logits[:, ::3] = -np.inf
    rows = [history(asking(Samplers(skew=skew))) for skew in np.linspace(-2, 2, 8)]
    assert np.isneginf(processed(logits, rows)[:, ::3]).all()


def test_nothing_is_packed_for_those_who_ask_nothing() -> None:
    packed = pack([history(SamplingParams(seed=1, temperature=0.7)), history(asking(ALL, **OTHERS))])
    samples = SampleFields(*packed)
    assert samples.queue_low[0] == samples.queue_high[0] == 0
    assert samples.queue_low[1] != 0 != samples.queue_high[1]


def test_the_memory_that_is_filled_is_the_one_that_has_sampled() -> None:
    """A sequence that is preempted looks back at the same text when it comes back."""
    params = asking(ALL, **OTHERS)
    sequence = history(params, [1, 2, 3], [4, 5])
    logits = random_logits(1)
    token = int(sample(logits, [sequence]).id[0])
    sampled = state_after_sampling(logits, [sequence])
    filled = sampler_state_of([history(params, [1, 2, 3], [4, 5, token])], VOCAB)
    np.testing.assert_array_equal(sampled.history[0], filled.history[0])

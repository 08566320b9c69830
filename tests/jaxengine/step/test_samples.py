"""A sample names its row and its token: a row has none, one or several, and each is what the tokens before it imply."""

import numpy as np
import pytest

from jaxengine.engine.engine import Engine
from jaxengine.request.event import Token
from jaxengine.request.plan import Row
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request, Sequence
from jaxengine.step.results import InFlight, Results
from jaxengine.step.samples import Samples
from tests.jaxengine.engines import EngineOf, alone, ask, prompt, serve


def sequence(number: int, length: int, *, prompt_logprobs: bool = False) -> Sequence:
    ids = [100 * number + position for position in range(length)]
    return Sequence(Request(number, ids, SamplingParams(seed=0, prompt_logprobs=prompt_logprobs)), number)


def listed(samples: Samples) -> list[tuple[int, int, int]]:
    """(request, token, position) of each."""
    requests = [row.sequence.request.id for row in samples.rows]
    return list(zip(requests, samples.token.tolist(), samples.position.tolist(), strict=True))


def test_by_default_a_row_that_samples_has_one_at_its_last_token() -> None:
    rows = [Row(sequence(0, 9), 8, 1, True), Row(sequence(1, 20), 4, 5, False), Row(sequence(2, 7), 3, 4, True)]
    assert listed(Samples.last_of(rows)) == [(0, 0, 9), (2, 9, 7)]


def test_a_step_may_have_none() -> None:
    assert len(Samples.last_of([Row(sequence(0, 20), 0, 5, False)])) == 0


def test_each_token_of_a_prompt_that_another_follows_is_scored_where_that_is_wanted() -> None:
    wanted = sequence(1, 6, prompt_logprobs=True)
    rows = [Row(sequence(0, 9), 8, 1, True), Row(wanted, 3, 3, True)]
    samples = Samples.of_prompts(rows)
    assert listed(samples) == [(1, 1, 4), (1, 2, 5)]
    assert samples.known_ids() == [104, 105]


@pytest.fixture
def engine(engine_of: EngineOf) -> Engine:
    return engine_of("llama2_gqa")


def test_several_samples_of_a_row_are_what_its_prefixes_are_answered(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, lengths = prompt(20), [3, 11, 20]
    expected = [alone(engine, ask(0, ids[:length], max_tokens=1)).tokens[0] for length in lengths]
    sampled: list[Token] = []
    fetch = engine.runner.fetch

    def spy(flight: InFlight) -> Results:
        results = fetch(flight)
        sampled.extend(results.sampled.tokens)
        return results

    def several(rows: list[Row]) -> Samples:
        position = np.array(lengths, np.int32)
        return Samples(rows * len(lengths), position - 1, position)

    monkeypatch.setattr(engine.runner, "fetch", spy)
    monkeypatch.setattr(Samples, "last_of", several)
    monkeypatch.setattr(engine.scheduler.tables, "prefix_cache", False)
    serve(engine, [ask(0, ids, max_tokens=1)])
    assert [token.id for token in sampled] == [token.id for token in expected]
    np.testing.assert_allclose([t.logprob for t in sampled], [t.logprob for t in expected], atol=1e-4)

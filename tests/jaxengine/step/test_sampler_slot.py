"""What a slot is filled with has the shapes that its executable is compiled for, whatever the request asks."""

import jax
import numpy as np
import pytest

from jaxengine.request.sampling_params import SamplingParams
from jaxengine.step.sampler_slot import SamplerSlot
from tests.jaxengine.sampler import history

LONGEST, VOCAB = 64, 320
REQUESTS = {
    "plain": SamplingParams(seed=0),
    "full": SamplingParams(
        seed=0,
        logit_bias={3: 1.0, 5: -2.0},
        bad_words=((7, 8), (9,)),
        stop_token_ids=(4, 6),
        min_tokens=2,
        repetition_penalty=1.5,
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_values_have_the_shapes_that_are_compiled_for(name: str) -> None:
    sequence = history(REQUESTS[name], prompt=range(10), generated=range(5))
    sequence.slot = 3
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    values = SamplerSlot.of(sequence, (1, 2), LONGEST, VOCAB)
    abstract = SamplerSlot.abstract(LONGEST, VOCAB, sharding)
    for name, value, shape in zip(SamplerSlot._fields, values, abstract, strict=True):
        assert (value.shape, value.dtype) == (shape.shape, shape.dtype), name


def test_end_tokens_are_banned_with_stop_tokens_unless_they_are_ignored() -> None:
    def bans(**params: object) -> set[int]:
        sequence = history(SamplingParams(seed=0, stop_token_ids=(4,), min_tokens=2, **params))  # type: ignore[arg-type]
        sequence.slot = 0
        return set(np.asarray(SamplerSlot.of(sequence, (1, 2), LONGEST, VOCAB).bans).tolist()) - {VOCAB}

    assert bans() == {1, 2, 4}
    assert bans(ignore_eos=True) == {4}

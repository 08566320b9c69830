"""What a message asks for in place of text is what the engine is asked for, and its answer is carried as it is."""

import numpy as np
import pytest

from jaxengine.options.pooling import POOLINGS
from jaxengine.request.event import Event, FinishReason
from jaxengine.request.sequence import LOGITS
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.service.codec import add_event, request_from
from tests.processes import ask


@pytest.mark.parametrize(("field", "choices"), [("logits", LOGITS), ("pooling", POOLINGS)])
def test_what_is_wanted_in_place_of_text_is_named_or_empty(field: str, choices: tuple[str, ...]) -> None:
    for name in ("", *choices):
        assert getattr(request_from(ask([5], 1, **{field: name}), 1), field) == (name or None)
    with pytest.raises(ValueError, match=f"{field} must be one of {', '.join(choices)}, got 'first'"):
        request_from(ask([5], 1, **{field: "first"}), 1)


def test_logits_arrive_to_the_bit() -> None:
    logits = np.random.default_rng(0).standard_normal((3, 5)).astype("<f4")
    message = pb.RequestEvent()
    add_event(message, Event(1, finish=FinishReason.LENGTH, logits=logits.tobytes()))
    read = pb.RequestEvent.FromString(message.SerializeToString())
    np.testing.assert_array_equal(np.frombuffer(read.logits, "<f4").reshape(3, 5), logits)
    assert not read.embedding and not read.tokens

"""What a message asks for in place of text is what the engine is asked for, and its answer is carried as it is."""

import numpy as np
import pytest

from jaxengine.options.pooling import POOLINGS
from jaxengine.request.event import Event, FinishReason
from jaxengine.request.samplers import ORDER, Samplers
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


def test_samplers_are_those_of_the_message() -> None:
    """Each kind is its place in the order of the engine, each field the one of its name; what is not set is neutral."""
    assert [name.lower() for name in pb.Samplers.Kind.keys()] == ["none", *ORDER]  # noqa: SIM118
    assert {field.name for field in pb.Samplers.DESCRIPTOR.fields} == set(Samplers.names())
    message = ask([5], 1)
    assert request_from(message, 1).params.samplers == Samplers()
    message.sampling.samplers.CopyFrom(
        pb.Samplers(xtc_probability=0.5, dry_breakers=[7, 8], order=["MIN_P", "TEMPERATURE"], penalties_first=True)
    )
    asked = Samplers(xtc_probability=0.5, dry_breakers=(7, 8), order=("min_p", "temperature"), penalties_first=True)
    assert request_from(message, 1).params.samplers == asked


@pytest.mark.parametrize(
    ("samplers", "refusal"),
    [
        (pb.Samplers(top_a=1.5), r"top_a must be in \[0, 1\], got 1.5"),
        (pb.Samplers(dry_range=8193), r"dry_range must be in \[0, 8192\], got 8193"),
        (pb.Samplers(dry_multiplier=float("nan")), "dry_multiplier must be in"),
        (pb.Samplers(order=["XTC", "XTC"]), "order must name each sampler once"),
        (pb.Samplers(order=[0]), "order must name each sampler once"),
        (pb.Samplers(order=[99]), "order must name each sampler once"),
    ],
)
def test_samplers_out_of_range_are_refused(samplers: pb.Samplers, refusal: str) -> None:
    message = ask([5], 1)
    message.sampling.samplers.CopyFrom(samplers)
    with pytest.raises(ValueError, match=refusal):
        request_from(message, 1)


def test_logits_arrive_to_the_bit() -> None:
    logits = np.random.default_rng(0).standard_normal((3, 5)).astype("<f4")
    message = pb.RequestEvent()
    add_event(message, Event(1, finish=FinishReason.LENGTH, logits=logits.tobytes()))
    read = pb.RequestEvent.FromString(message.SerializeToString())
    np.testing.assert_array_equal(np.frombuffer(read.logits, "<f4").reshape(3, 5), logits)
    assert not read.embedding and not read.tokens

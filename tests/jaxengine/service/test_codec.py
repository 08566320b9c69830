"""What a message asks for in place of text is what the engine is asked for, and its answer is carried as it is."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxengine.architecture.picture import PictureShape
from jaxengine.options.pooling import POOLINGS
from jaxengine.request.event import Event, FinishReason, Token
from jaxengine.request.interface import ServedAdapter
from jaxengine.request.resume import Resume
from jaxengine.request.samplers import ORDER, Samplers
from jaxengine.request.sequence import LOGITS
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.service.codec import adapter_to, add_event, request_from
from tests.processes import ask


@pytest.mark.parametrize(("field", "choices"), [("logits", LOGITS), ("pooling", POOLINGS)])
def test_what_is_wanted_in_place_of_text_is_named_or_empty(field: str, choices: tuple[str, ...]) -> None:
    for name in ("", *choices):
        assert getattr(request_from(ask([5], 1, **{field: name}), 1), field) == (name or None)
    with pytest.raises(ValueError, match=f"{field} must be one of {', '.join(choices)}, got 'first'"):
        request_from(ask([5], 1, **{field: "first"}), 1)


def test_a_way_to_stop_early_that_nobody_knows_is_refused() -> None:
    """An enum of proto3 carries any number."""
    message = ask([5], 1)
    message.beam_search.CopyFrom(pb.BeamSearch(width=2, early_stopping=7))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"beam_search.early_stopping must be one of 0, 1, 2, got 7"):
        request_from(message, 1)


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


def test_what_was_answered_before_is_that_of_the_message() -> None:
    message = ask([5], 4, resume=pb.Resume(generated=[7, 9]), timeout_seconds=2.5, queue_timeout_seconds=1.5)
    request = request_from(message, 1)
    assert request.resume == Resume((7, 9))
    assert (request.prompt, request.params.max_tokens, request.timeout) == ([5], 4, 2.5)
    assert request.queue_timeout is None, "it has been scheduled, and there is an answer"
    message.resume.surprise = -0.25
    assert request_from(message, 1).resume == Resume((7, 9), -0.25)
    message.ClearField("resume")
    assert (request_from(message, 1).resume, request_from(message, 1).queue_timeout) == (None, 1.5)


@pytest.mark.parametrize(
    ("resume", "refusal"),
    [
        (pb.Resume(), "resume.generated has no tokens"),
        (pb.Resume(surprise=2.0), "resume.generated has no tokens"),
        (pb.Resume(generated=[7], surprise=float("nan")), "resume.surprise must be finite, got nan"),
        (pb.Resume(generated=[7], surprise=float("inf")), "resume.surprise must be finite, got inf"),
    ],
)
def test_what_says_nothing_of_an_answer_is_refused(resume: pb.Resume, refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        request_from(ask([5], 4, resume=resume), 1)


def test_of_merged_events_the_last_bound_counts_and_zero_is_one() -> None:
    message = pb.RequestEvent()
    add_event(message, Event(1, [Token(5, -1.0)]))
    assert not message.HasField("surprise")
    for bound in (1.5, 0.0):
        add_event(message, Event(1, [Token(5, -1.0)], surprise=bound))
        assert message.HasField("surprise") and message.surprise == bound
    add_event(message, Event(1, finish=FinishReason.CANCELLED))
    assert message.HasField("surprise")


def test_an_adapter_is_told_with_its_digest() -> None:
    message = adapter_to(ServedAdapter("a", "org/a", 8, b"\x00\xff"))
    assert message == pb.Adapter(name="a", path="org/a", rank=8, digest=b"\x00\xff")


def test_logits_arrive_to_the_bit() -> None:
    logits = np.random.default_rng(0).standard_normal((3, 5)).astype("<f4")
    message = pb.RequestEvent()
    add_event(message, Event(1, finish=FinishReason.LENGTH, logits=logits.tobytes()))
    read = pb.RequestEvent.FromString(message.SerializeToString())
    np.testing.assert_array_equal(np.frombuffer(read.logits, "<f4").reshape(3, 5), logits)
    assert not read.embedding and not read.tokens


def sent(dtype: str = "float32", **fields: Any) -> pb.Generate:
    """A request with an image of 2 · 3 patches of two numbers each."""
    numbers = np.arange(12, dtype=np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else "<f4"))
    whole = {"digest": bytes(range(32)), "offset": 1, "length": 2, "height": 5, "width": 7, "dtype": dtype}
    whole |= {"tiles": [pb.Tile(rows=2, columns=2), pb.Tile(rows=1, columns=2)], "patches": numbers.tobytes()}
    return ask([5, 6, 6], 1, images=[pb.Image(**whole | fields)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_images_are_those_of_the_message(dtype: str) -> None:
    (image,) = request_from(sent(dtype), 1).images
    assert (image.digest, image.offset, image.length, image.end) == (bytes(range(32)), 1, 2, 3)
    assert image.shape == PictureShape(((2, 2), (1, 2)), 5, 7)
    assert image.patches.dtype.name == dtype and image.patches.tolist() == [[2 * i, 2 * i + 1] for i in range(6)]
    assert request_from(ask([5], 1), 1).images == ()


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"dtype": "float16"}, "images.dtype must be one of float32, bfloat16, got 'float16'"),
        ({"dtype": ""}, "images.dtype must be one of"),
        ({"patches": b""}, "images.patches have 0 bytes, which are no 6 patches"),
        ({"tiles": []}, "images.patches have 48 bytes, which are no 0 patches"),
        ({"tiles": [pb.Tile(rows=1, columns=5)]}, "images.patches have 48 bytes, which are no 5 patches"),
        ({"tiles": [pb.Tile(rows=2**32 - 1, columns=2**32 - 1)]}, "images.patches have 48 bytes, which are no"),
        ({"digest": b"short"}, "images.digest must have 32 bytes, got 5"),
        ({"length": 0}, "images.length 0 span no tokens"),
    ],
)
def test_images_that_are_none_are_refused(fields: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        request_from(sent(**fields), 1)


def test_a_request_has_so_many_bytes_of_images_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxengine.service.codec.MAX_PATCH_BYTES", 95)
    message = sent()
    request_from(message, 1)
    message.images.append(message.images[0])
    with pytest.raises(ValueError, match=r"images.patches have 96 bytes, more than 95"):
        request_from(message, 1)

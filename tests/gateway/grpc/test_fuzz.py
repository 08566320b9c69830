"""Thousands of messages that no client would send: each is answered or refused, and none breaks anything."""

import asyncio
import logging
import random
from collections import Counter
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from gateway.grpc import open_inference_pb2 as pb
from tests.gateway.grpc.serving import ANSWERS, MODEL, Client, ids, request, serving, text

Code = grpc.StatusCode
ROUNDS = 4000
EXPECTED = {Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE}
EXPECTED |= {Code.DEADLINE_EXCEEDED}  # a message may name a timeout, of microseconds even
SEEDS = (
    request(*text("lo", max_tokens=3, temperature=0.5, stop_words="x", return_logprobs=True), id="a"),
    request(*text("lo", max_tokens=3, sampling_parameters='{"top_p": "0.5"}'), typed=True, model_version="1"),
    request(ids([5, 6]), model=f"{MODEL}_logits", outputs=[pb.ModelInferRequest.RequestedOutput(name="logits")]),
    request(ids([5, 6]), parameters={"positions": pb.InferParameter(string_param="last")}),
    request(*text("lo")[:0], model=f"{MODEL}_tokenizer"),
)
VALUES: dict[int, list[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: [0, -1, 7, 2**31 - 1],
    FieldDescriptor.CPPTYPE_INT64: [0, -1, 1, 7, 2**63 - 1, -(2**63)],
    FieldDescriptor.CPPTYPE_UINT32: [0, 7, 2**32 - 1],
    FieldDescriptor.CPPTYPE_UINT64: [0, 7, 2**64 - 1],
    FieldDescriptor.CPPTYPE_DOUBLE: [0.0, -1.5, float("nan"), float("inf")],
    FieldDescriptor.CPPTYPE_FLOAT: [0.0, 0.5, float("nan"), float("-inf")],
    FieldDescriptor.CPPTYPE_BOOL: [True, False],
    FieldDescriptor.CPPTYPE_STRING: ["", "a", "BYTES", "BOOL", "FP32", "INT64", "stream", "text_input", "x" * 300],
}


def change(message: Message, chance: random.Random) -> None:
    """Change, add or remove something, anywhere in `message`."""
    field = chance.choice(message.DESCRIPTOR.fields)
    several = field.is_repeated
    held = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key = chance.choice(["timeout", "priority", "temperature", "classification", "triton_a", "seed", ""])
        change(held[key], chance)
    elif field.message_type is not None:
        within = (chance.choice(held) if held and chance.random() < 0.8 else held.add()) if several else held
        change(within, chance)
    else:
        values = VALUES[field.cpp_type]
        if field.type == FieldDescriptor.TYPE_BYTES:
            values = [b"", b"\1\0\0\0a", b"\xff" * 4, b"\0" * 8, chance.randbytes(20)]
        if not several:
            setattr(message, field.name, chance.choice(values))
        elif held and chance.random() < 0.5:
            del held[chance.randrange(len(held))]
        else:
            held.append(chance.choice(values))


def message(chance: random.Random) -> bytes:
    """One that is nearly right, one whose bytes are changed, or bytes alone."""
    asked = pb.ModelInferRequest()
    asked.CopyFrom(chance.choice(SEEDS))
    for _ in range(chance.randrange(4)):
        change(asked, chance)
    raw = bytearray(asked.SerializeToString())
    if chance.random() < 0.3:
        for _ in range(3):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
    return bytes(raw) if chance.random() < 0.95 else chance.randbytes(chance.randrange(200))


async def status_of(client: Client, name: str, raw: bytes) -> grpc.StatusCode:
    try:
        await asyncio.wait_for(client.unary(name)(raw), 60)
    except grpc.aio.AioRpcError as error:
        assert error.code() in EXPECTED, (name, raw, error)
        return error.code()
    return Code.OK


async def test_no_message_breaks_a_call(caplog: pytest.LogCaptureFixture) -> None:
    chance, seen = random.Random(0), Counter[grpc.StatusCode]()
    caplog.set_level(logging.WARNING)
    async with serving() as served:
        for _ in range(ROUNDS // 8):
            names = ["ModelInfer" if chance.random() < 0.8 else chance.choice(list(ANSWERS)) for _ in range(8)]
            seen.update(await asyncio.gather(*(status_of(served.client, each, message(chance)) for each in names)))
        assert (await served.client.infer(request(*text("lo"))))["text_output"] == ["lohello world"]
        assert not served.app.gateway.admission.active and not served.app.engine.open
    assert seen[Code.OK] > ROUNDS / 20 and seen[Code.INVALID_ARGUMENT] > ROUNDS / 5, seen
    assert not caplog.records


async def test_no_message_breaks_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    chance, failed = random.Random(1), 0
    async with serving() as served:
        call = served.client.stream()
        for round in range(ROUNDS // 4):
            await call.write(message(chance))
            await call.write(request(*text("lo"), id=f"right {round}"))
            while (answer := await asyncio.wait_for(call.read(), 60)).infer_response.id != f"right {round}":
                failed += bool(answer.error_message)
                assert answer.error_message != "internal error"
            assert not answer.error_message
        await call.done_writing()
        while (answer := await asyncio.wait_for(call.read(), 60)) is not grpc.aio.EOF:
            failed += bool(answer.error_message)
        assert await call.code() == Code.OK
    assert failed > ROUNDS / 16
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]

"""`/v1/embeddings`: texts or token ids as vectors, the model's hidden states pooled by the engine."""

import asyncio
import base64
import json
import math
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Request, Response
from pydantic import ConfigDict, Field, field_validator, model_validator

from gateway.errors import Kind, RequestError, deadline_passed
from gateway.http.body import StrictModel
from gateway.http.disconnect import while_connected
from gateway.http.encoding import in_thread, json_list, json_text
from gateway.request.gateway_state import Gateway
from gateway.request.info import RequestInfo
from gateway.request.lifecycle import RequestLifecycle, serving
from gateway.request.output import OutputPolicy, OutputProcessor
from gateway.routes.openai import validation
from gateway.routes.openai.common import Int32
from gateway.routes.openai.identity import SAFE_ID, names, request_id
from gateway.routes.openai.schemas import Prompts, one_or_many
from gateway.routes.openai.unsupported import refuse_unsupported
from gateway.text.model_text import ModelText, Side, truncate
from jaxengine.rpc import engine_pb2 as pb

MAX_INPUTS = 2048  # as OpenAI
AT_ONCE = 32  # of a request's inputs: each has a permit, and the next one takes it
MANY = 10_000  # numbers of an answer, of which a thousand take 0.5 ms to write
POLICY = OutputPolicy(keep_stop=False, show_end=False, skip_special=True, length_first=True)

# By name, the values that ask for nothing: fields of vLLM and SGLang that would change the vectors.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "messages": (),
    "padding": ("do_not_pad",),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "pooling_type": (),
    "task": ("embed",),
    "lora_path": (),
    "input_ids": (),
    "images": (),
}


class EmbeddingRequest(StrictModel):
    """Body of `/v1/embeddings`. `inputs` is the field `input` as a list; each entry is a text or a list of ids."""

    model_config = ConfigDict(extra="allow")  # so that unsupported fields can be told from absent ones

    inputs: Prompts = Field(alias="input")
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    normalize: bool | None = None  # vLLM's, by its older and its newer name: to unit length
    use_activation: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    truncation_side: Side | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Int32 | None = None
    request_id: Annotated[str, Field(pattern=f"^(?:{SAFE_ID.pattern})$")] | None = None

    @field_validator("inputs", mode="plain")
    @classmethod
    def _one_or_many(cls, value: Any) -> list[str | list[int]]:
        inputs = one_or_many(value)
        if len(inputs) > MAX_INPUTS:
            raise ValueError(f"takes at most {MAX_INPUTS} texts, given {len(inputs)}")
        return inputs

    @model_validator(mode="after")
    def _is_supported(self) -> "EmbeddingRequest":
        refuse_unsupported(self.model_extra or {}, UNSUPPORTED, {})
        if self.truncate_prompt_tokens == 0:
            raise RequestError.invalid("truncate_prompt_tokens must be at least 1, or -1", "truncate_prompt_tokens")
        return self

    @property
    def unit_length(self) -> bool:
        return self.normalize is not False and self.use_activation is not False


async def respond(request: Request, gateway: Gateway, body: EmbeddingRequest, arrival: float) -> Response:
    """The whole answer, unless the client leaves before it is made. Raises RequestError."""
    request_id(request, body.request_id)
    return await while_connected(request.receive, _respond(request, gateway, body, arrival))


async def _respond(request: Request, gateway: Gateway, body: EmbeddingRequest, arrival: float) -> Response:
    with RequestLifecycle(gateway, RequestInfo.of(request, arrival)) as lifecycle:
        model, description = serving(gateway)
        adapter = await validation.check_model(body.model, gateway, description)
        _check_dimensions(body, description)
        at_once = min(len(body.inputs), AT_ONCE, gateway.options.max_concurrent_requests)
        lifecycle.admit(at_once)
        with lifecycle.span("tokenize"):
            prompts = [await _ids(gateway, model, body, index) async for index in _turns(len(body.inputs))]
        outputs = [OutputProcessor(model, _wanted(body, ids, adapter, description), ids, [], POLICY) for ids in prompts]
        await _run(gateway, lifecycle, outputs, at_once)
        head = {
            "id": f"embd-{request_id(request)}",
            "object": "list",
            "created": int(time.time()),
            "model": adapter or names(gateway.options, description)[0],
        }
        large = len(outputs) * (body.dimensions or description.hidden_size) > MANY
        return await in_thread(lambda: _answer(head, body, outputs), when=large)


def _check_dimensions(body: EmbeddingRequest, description: pb.Description) -> None:
    if not description.pooling:
        reason = "it has an encoder, or its 1_Pooling/config.json asks for what only --pooling replaces"
        raise RequestError.invalid(f"this model makes no embeddings: {reason}", "model")
    if body.dimensions and body.dimensions > description.hidden_size:
        limit = f"this model's embeddings have {description.hidden_size}"
        raise RequestError.invalid(f"dimensions is {body.dimensions}, {limit}", "dimensions")


async def _turns(count: int) -> AsyncGenerator[int, None]:
    """0 … count-1, each in a turn of the event loop: short texts are tokenised there, and there may be thousands."""
    for index in range(count):
        if index:
            await asyncio.sleep(0)
        yield index


async def _ids(gateway: Gateway, model: ModelText, body: EmbeddingRequest, index: int) -> list[int]:
    """The token ids of input number `index`. Raises RequestError."""
    given, most = body.inputs[index], gateway.max_input_tokens
    field = f"input[{index}]" if len(body.inputs) > 1 else "input"
    cut = None if body.truncate_prompt_tokens is None else body.truncation_side or "left"
    if isinstance(given, str):
        special = body.add_special_tokens is not False
        ids = await model.encode(given, add_special_tokens=special, field=field, cut=cut)
    else:
        ids = given
        validation.refuse_unknown_ids(ids, serving(gateway)[1].vocab_size, field)
    if body.truncate_prompt_tokens is not None and cut is not None:
        ids = truncate(ids, most if body.truncate_prompt_tokens == -1 else body.truncate_prompt_tokens, cut)
    if not ids:
        raise RequestError.invalid(f"{field} holds no tokens", "input")
    if len(ids) > most:
        message = f"This model's maximum context length is {most} tokens for an embedding, but {field} has {len(ids)}"
        raise RequestError(Kind.CONTEXT_LENGTH, message, param="input")
    return ids


def _wanted(body: EmbeddingRequest, ids: list[int], adapter: str, description: pb.Description) -> pb.Generate:
    return pb.Generate(
        prompt=ids,
        sampling=pb.Sampling(top_p=1.0, typical_p=1.0, repetition_penalty=1.0),
        max_new_tokens=1,
        cache_salt=(body.cache_salt or "").encode(),
        priority=body.priority or 0,
        adapter=adapter,
        pooling=description.pooling,
    )


async def _run(gateway: Gateway, lifecycle: RequestLifecycle, outputs: list[OutputProcessor], at_once: int) -> None:
    """Have all made, within the time of one request."""
    try:
        async with asyncio.timeout(gateway.options.request_timeout or None):
            async with aclosing(lifecycle.run(outputs, at_once)) as deltas:
                async for _ in deltas:
                    pass
    except TimeoutError:
        raise deadline_passed(gateway.options) from None


def _answer(head: dict[str, Any], body: EmbeddingRequest, outputs: Sequence[OutputProcessor]) -> Response:
    tokens = sum(len(each.prompt_ids) for each in outputs)
    data = json_list(_entry(body, index, output) for index, output in enumerate(outputs))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    fields = f'{json.dumps(head)[:-1]},"data":{data},"usage":{json.dumps(usage)}}}'
    return Response(fields, media_type="application/json")


def _entry(body: EmbeddingRequest, index: int, output: OutputProcessor) -> str:
    """One of `data`, as JSON."""
    vector = _vector(body, output)
    if body.encoding_format == "base64":
        written = json_text(base64.b64encode(vector.tobytes()).decode())
    else:
        written = json.dumps(vector.tolist(), separators=(",", ":"))
    return f'{{"object":"embedding","index":{index},"embedding":{written}}}'


def _vector(body: EmbeddingRequest, output: OutputProcessor) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """f32 [dimensions], little-endian: the first of the model's, of unit length unless told otherwise."""
    vector = np.frombuffer(output.embedding, "<f4")[: body.dimensions].astype(np.float64)
    length = float(np.linalg.norm(vector))
    if not math.isfinite(length):
        raise RequestError(Kind.GENERATION, "the model's hidden states are not finite")
    scale = length if body.unit_length and length else 1.0
    return (vector / scale).astype("<f4")

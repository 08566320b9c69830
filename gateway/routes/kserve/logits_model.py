"""The model's logits as a model of its own: the ids of one prompt in, the logits behind each of them out.

An answer is large, four bytes for each token of the vocabulary and position: its size is limited, and of those with all
positions one at a time is on its way from the engine to this process.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator

import numpy as np

from gateway.errors import ContextExceeded, RequestError, deadline_passed
from gateway.http.encoding import in_thread
from gateway.request.gateway_state import Gateway
from gateway.request.info import RequestInfo
from gateway.request.lifecycle import RequestLifecycle, serving
from gateway.request.output import OutputPolicy, OutputProcessor
from gateway.routes.kserve.inference import InferRequest, InferResponse, Signature, TensorSpec
from gateway.routes.kserve.tensor import BYTES, Tensor
from gateway.routes.openai import validation
from gateway.text.tokenizer import Tokenizer
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.limits import MAX_LOGITS_BYTES

LOGITS = "logits"
POSITIONS = ("all", "last")  # values of the parameter `positions`
POLICY = OutputPolicy(keep_stop=False, show_end=False, skip_special=True, length_first=True)


class LogitsModel:
    signature = Signature(
        inputs=(
            TensorSpec("input_ids", "INT64", (-1, -1)),
            TensorSpec("attention_mask", "INT64", (-1, -1), optional=True),
        ),
        outputs=(TensorSpec(LOGITS, "FP32", (-1, -1, -1), labels=True),),
    )

    def __init__(self, name: str) -> None:
        self.name = name

    async def infer(
        self, gateway: Gateway, info: RequestInfo, request: InferRequest
    ) -> AsyncGenerator[InferResponse, None]:
        """FP32 [1, S, V]; [1, 1, V] where `positions` is "last"; the highest of the last where classes are wanted."""
        with RequestLifecycle(gateway, info) as lifecycle:
            model, description = serving(gateway)
            if not description.logits:
                raise RequestError.invalid("this model answers no logits: it has an encoder, or no head")
            ids = _ids(request, gateway.max_input_tokens, description.vocab_size)
            classes = request.classes(LOGITS)
            positions = "last" if classes else _positions(request, len(ids), description.vocab_size)
            lifecycle.admit(1)
            wanted = pb.Generate(
                prompt=ids,
                sampling=pb.Sampling(top_p=1.0, typical_p=1.0, repetition_penalty=1.0),
                max_new_tokens=1,
                priority=request.priority,
                logits=positions,
            )
            output = OutputProcessor(model, wanted, ids, [], POLICY)
            turn = gateway.one_with_logits if positions == "all" else contextlib.nullcontext()
            try:
                async with asyncio.timeout(lifecycle.time_left()), turn:
                    await lifecycle.collect([output])
            except TimeoutError:
                raise deadline_passed(gateway.options) from None
            tensor = await in_thread(lambda: _tensor(output, description.vocab_size, classes), when=True)
            yield InferResponse(request.model, request.id, (tensor,), stats=lifecycle.stats())


def _ids(request: InferRequest, most: int, vocab_size: int) -> list[int]:
    """The ids of the one prompt. Raises RequestError."""
    tensor, mask = request.inputs["input_ids"], request.inputs.get("attention_mask")
    if tensor.shape[:-1] not in ((), (1,)):
        message = f"input 'input_ids' must be one prompt of shape [1, S], given {list(tensor.shape)}"
        raise RequestError.invalid(message, "input_ids")
    if not len(tensor.values):
        raise RequestError.invalid("input 'input_ids' holds no tokens", "input_ids")
    if len(tensor.values) > most:
        message = f"input 'input_ids' has {len(tensor.values)} ids, at most {most} can be read"
        raise ContextExceeded(message, "input_ids", prompt=len(tensor.values), wanted=0, most=most)
    ids: list[int] = tensor.values.tolist()
    if mask is not None and mask.values.tolist() != [1] * len(ids):
        message = f"input 'attention_mask' must be ones, one for each of {len(ids)} ids: leave out what it would hide"
        raise RequestError.invalid(message, "attention_mask")
    validation.refuse_unknown_ids(ids, vocab_size, "input_ids")
    return ids


def _positions(request: InferRequest, length: int, vocab_size: int) -> str:
    """Those whose logits are wanted. Raises RequestError if they are too many for one answer."""
    positions = request.parameters.get("positions", "all")
    if positions not in POSITIONS:
        raise RequestError.invalid(f"parameter 'positions' must be one of {', '.join(POSITIONS)}", "positions")
    size = 4 * length * vocab_size
    if positions == "all" and size > MAX_LOGITS_BYTES:
        instead = "set the parameter positions to last, or ask for the classification of the output"
        message = (
            f"input 'input_ids': the logits of {length} ids are {size} bytes, at most {MAX_LOGITS_BYTES}: {instead}"
        )
        raise RequestError.invalid(message, "input_ids")
    return str(positions)


def _tensor(output: OutputProcessor, vocab_size: int, classes: int) -> Tensor:
    logits = np.frombuffer(output.logits, "<f4")
    if classes:
        return Tensor.of(LOGITS, BYTES, list(_highest(logits, classes, output.model.tokenizer)))
    return Tensor(LOGITS, "FP32", (1, len(logits) // vocab_size, vocab_size), logits)


def _highest(logits: np.ndarray, classes: int, tokenizer: Tokenizer) -> Iterator[str]:
    """The `classes` highest of logits f32 [V], as Triton's classification extension: `value:index:label`."""
    for id in np.argsort(-logits, kind="stable")[:classes].tolist():
        yield f"{logits[id]:f}:{id}:{tokenizer.token_text(id)}"

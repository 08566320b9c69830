"""The model's tokenizer as a model of its own: texts in, token ids and their attention mask out."""

import asyncio
from collections.abc import AsyncGenerator

import numpy as np

from gateway.errors import RequestError
from gateway.request.gateway_state import Gateway
from gateway.request.info import RequestInfo
from gateway.request.lifecycle import serving
from gateway.routes.kserve.inference import InferRequest, InferResponse, Signature, TensorSpec, texts_of
from gateway.routes.kserve.tensor import BYTES, Tensor

MAX_TEXTS = 2048
MAX_IDS = 1 << 20  # of an answer, padding included
PADDING = 0  # the mask tells it apart


class TokenizerModel:
    signature = Signature(
        inputs=(TensorSpec("TEXT", BYTES),),
        outputs=(TensorSpec("input_ids", "INT64", (-1, -1)), TensorSpec("attention_mask", "INT64", (-1, -1))),
    )

    def __init__(self, name: str) -> None:
        self.name = name

    async def infer(
        self, gateway: Gateway, info: RequestInfo, request: InferRequest
    ) -> AsyncGenerator[InferResponse, None]:
        """Ids of each text with the model's special tokens, padded at the right: both outputs are [texts, longest]."""
        texts = texts_of(request.inputs["TEXT"])
        if not 1 <= len(texts) <= MAX_TEXTS:
            raise RequestError.invalid(f"input 'TEXT' takes 1 to {MAX_TEXTS} texts, given {len(texts)}", "TEXT")
        model, _ = serving(gateway)
        ids = []
        for text in texts:
            ids.append(await model.encode(text, add_special_tokens=True, field="TEXT"))
            await asyncio.sleep(0)  # short texts are tokenised on the event loop
        longest = max(map(len, ids))
        if len(ids) * longest > MAX_IDS:
            message = f"input 'TEXT' makes {len(ids)} rows of {longest} ids, at most {MAX_IDS} ids in all"
            raise RequestError.invalid(message, "TEXT")
        shape = (len(ids), longest)
        padded, mask = np.full(shape, PADDING, np.int64), np.zeros(shape, np.int64)
        for row, real, each in zip(padded, mask, ids, strict=True):
            row[: len(each)], real[: len(each)] = each, 1
        outputs = {"input_ids": padded, "attention_mask": mask}
        tensors = (Tensor.of(name, "INT64", each, shape) for name, each in outputs.items() if request.wants(name))
        yield InferResponse(request.model, request.id, tuple(tensors))

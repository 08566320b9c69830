"""Triton's HTTP client: what it reads of the server, texts, ids and logits, whole and at once, sync and asyncio."""

import asyncio
import json
import sys
from typing import Any

import numpy as np
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

job = json.loads(sys.argv[1])
url, model, texts = job["url"].removeprefix("http://"), job["model"], job["texts"]
NUMBERS = {"max_tokens": np.int32}


def keyed() -> dict[str, Any]:
    """Headers, anew each time: the client adds the length of a request's JSON to what it is given."""
    return {"headers": {"authorization": f"Bearer {job['key']}"}}


def tensor(name: str, values: Any, *, binary: bool = True, kind: Any = triton.InferInput) -> Any:
    """`values` as the input `name`, whose type is numpy's."""
    array = np.asarray(values)
    if array.dtype.kind in "US":
        array = array.astype(object)
    datatype = {"O": "BYTES", "b": "BOOL"}.get(array.dtype.kind) or {"i4": "INT32", "i8": "INT64"}[array.dtype.str[1:]]
    made = kind(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def text_inputs(text: str, **options: Any) -> list[Any]:
    new = {"max_tokens": np.array([job["new"]], np.int32), "exclude_input_in_output": np.array([True])}
    return [tensor("text_input", [text]), *(tensor(name, value) for name, value in {**new, **options}.items())]


def texts_of(result: Any, name: str = "text_output") -> list[str]:
    return [each.decode() for each in result.as_numpy(name).ravel().tolist()]


def refused(work: Any) -> list[str]:
    try:
        work()
    except InferenceServerException as error:
        return [str(error.status()), error.message()]
    return []


async def asynchronous() -> list[str]:
    async with triton_aio.InferenceServerClient(url) as client:
        assert await client.is_server_ready()
        found = [client.infer(model, text_inputs(text), **keyed()) for text in texts]
        return [text for result in await asyncio.gather(*found) for text in texts_of(result)]


client = triton.InferenceServerClient(url, concurrency=4)
pending = [client.async_infer(model, text_inputs(text), **keyed()) for text in texts]
tokenizer = client.infer(f"{model}_tokenizer", [tensor("TEXT", texts)], **keyed())
in_json = client.infer(
    f"{model}_tokenizer",
    [tensor("TEXT", texts, binary=False)],
    outputs=[triton.InferRequestedOutput(name, binary_data=False) for name in ("input_ids", "attention_mask")],
    **keyed(),
)
ids, mask = tokenizer.as_numpy("input_ids"), tokenizer.as_numpy("attention_mask")
first = ids[:1, : int(mask[0].sum())]
logits = client.infer(f"{model}_logits", [tensor("input_ids", first)], **keyed()).as_numpy("logits")
classes = client.infer(
    f"{model}_logits",
    [tensor("input_ids", first), tensor("attention_mask", np.ones_like(first))],
    outputs=[triton.InferRequestedOutput("logits", class_count=3)],
    **keyed(),
)
squeezed = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "deflate", **keyed()}
prompt = np.array([False])
print(
    json.dumps(
        {
            "live": [client.is_server_live(), client.is_server_ready(), client.is_model_ready(model, **keyed())],
            "unknown model is ready": client.is_model_ready("none", **keyed()),
            "server": client.get_server_metadata(**keyed()),
            "metadata": client.get_model_metadata(model, "1", **keyed()),
            "config": client.get_model_config(model, **keyed()),
            "index": client.get_model_repository_index(**keyed()),
            "log settings": client.get_log_settings(**keyed()),
            "trace settings": client.get_trace_settings(model, **keyed()),
            "memory": client.get_system_shared_memory_status(**keyed()),
            "whole": [text for text in texts for text in texts_of(client.infer(model, text_inputs(text), **keyed()))],
            "at once": [text for each in pending for text in texts_of(each.get_result())],
            "compressed": texts_of(client.infer(model, text_inputs(texts[0]), **squeezed)),
            "asyncio": asyncio.run(asynchronous()),
            "with prompt": texts_of(
                client.infer(model, text_inputs(texts[0], exclude_input_in_output=prompt), **keyed())
            ),
            "id": client.infer(model, text_inputs(texts[0]), request_id="7", **keyed()).get_response()["id"],
            "ids": ids.tolist(),
            "mask": mask.tolist(),
            "json": [in_json.as_numpy("input_ids").tolist(), in_json.as_numpy("attention_mask").tolist()],
            "logits": logits.tolist(),
            "classes": texts_of(classes, "logits"),
            "statistics": client.get_inference_statistics(model, **keyed()),
            "no key": refused(lambda: client.infer(model, text_inputs(texts[0]))),
            "no model": refused(lambda: client.infer("none", text_inputs(texts[0]), **keyed())),
            "no input": refused(lambda: client.infer(model, [tensor("text_output", texts[:1])], **keyed())),
            "load": refused(lambda: client.load_model(model, **keyed())),
        }
    )
)

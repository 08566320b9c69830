"""Triton's gRPC client: what it reads of the server, texts and logits, by futures and asyncio, over streams."""

import asyncio
import json
import queue
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

job = json.loads(sys.argv[1])
url, model, texts = job["url"], job["model"], job["texts"]
KEYED: dict[str, Any] = {"headers": {"authorization": f"Bearer {job['key']}"}}
PATIENCE = 60


def tensor(name: str, array: Any) -> Any:
    datatype = {"O": "BYTES", "b": "BOOL"}.get(array.dtype.kind) or {"i4": "INT32", "i8": "INT64"}[array.dtype.str[1:]]
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def text_inputs(text: str, **options: Any) -> list[Any]:
    given = {
        "text_input": np.array([text], dtype=object),
        "max_tokens": np.array([job["new"]], np.int32),
        "exclude_input_in_output": np.array([True]),
        **options,
    }
    return [tensor(name, value) for name, value in given.items()]


def texts_of(result: Any, name: str = "text_output") -> list[str]:
    return [each.decode() for each in result.as_numpy(name).ravel().tolist()]


def refused(work: Callable[[], Any]) -> list[str]:
    try:
        work()
    except InferenceServerException as error:
        return [str(error.status()), error.message()]
    return []


def futures() -> list[str]:
    """`async_infer`, whose callbacks come from a thread."""
    done: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
    for number, text in enumerate(texts):

        def callback(result: Any, error: Any, number: int = number) -> None:
            done.put((number, result, error))

        client.async_infer(model, text_inputs(text), callback, **KEYED)
    found = sorted((done.get(timeout=PATIENCE) for _ in texts), key=lambda each: each[0])
    assert not any(error for _, _, error in found)
    return [text for _, result, _ in found for text in texts_of(result)]


class Stream:
    """A stream of one client, what it was answered by id, and its errors."""

    def __init__(self) -> None:
        self.client = triton.InferenceServerClient(url)
        self.answers: defaultdict[str, list[str]] = defaultdict(list)
        self.order: list[str] = []
        self.errors: list[str] = []
        self.final: queue.Queue[str] = queue.Queue()
        self.client.start_stream(self._take, **KEYED)

    def ask(self, text: str, id: str, name: str = model, **options: Any) -> None:
        inputs = text_inputs(text, stream=np.array([True]), **options)
        self.client.async_stream_infer(name, inputs, request_id=id, enable_empty_final_response=True)

    def _take(self, result: Any, error: Any) -> None:
        if error is not None:
            self.errors.append(error.message() if error.status() is None else str(error.status()))
            self.final.put("error")
            return
        response = result.get_response()
        self.order.append(response.id)
        self.answers[response.id] += texts_of(result)
        if response.parameters["triton_final_response"].bool_param:
            self.final.put(response.id)

    def until_final(self, count: int) -> list[str]:
        return sorted(self.final.get(timeout=PATIENCE) for _ in range(count))


def streamed() -> dict[str, Any]:
    """Two at once, a failure between, and `stop_stream` while one still runs."""
    stream = Stream()
    for number, text in enumerate(texts[:2]):
        stream.ask(text, str(number), max_tokens=np.array([job["long"]], np.int32))
    stream.ask(texts[0], "none", name="none")
    finals = stream.until_final(3)
    stream.ask(texts[2], "2")
    stream.client.stop_stream()
    changes = sum(one != next for one, next in zip(stream.order, stream.order[1:], strict=False))
    return {
        "texts": ["".join(stream.answers[id]) for id in "012"],
        "finals": finals,
        "changes": changes,
        "errors": stream.errors,
    }


def cancelled() -> list[str]:
    stream = Stream()
    stream.ask(texts[0], "0", max_tokens=np.array([1500], np.int32))
    while not stream.order:
        time.sleep(0.01)
    stream.client.stop_stream(cancel_requests=True)
    return stream.errors


async def asynchronous() -> tuple[list[str], list[str]]:
    async with triton_aio.InferenceServerClient(url) as aio:
        assert await aio.is_server_ready()
        found = await asyncio.gather(*(aio.infer(model, text_inputs(text), **KEYED) for text in texts))

        async def requests() -> Any:
            for number, text in enumerate(texts):
                inputs = text_inputs(text, stream=np.array([True]))
                yield {"model_name": model, "inputs": inputs, "request_id": str(number)}

        pieces: defaultdict[str, str] = defaultdict(str)
        async for result, error in aio.stream_infer(requests(), **KEYED):
            assert error is None
            pieces[result.get_response().id] += "".join(texts_of(result))
        return [text for result in found for text in texts_of(result)], [pieces[str(n)] for n in range(len(texts))]


client = triton.InferenceServerClient(url)
whole, over_stream = asyncio.run(asynchronous())
text = tensor("TEXT", np.array(texts[:1], dtype=object))
ids = client.infer(f"{model}_tokenizer", [text], **KEYED).as_numpy("input_ids")
classes = client.infer(
    f"{model}_logits",
    [tensor("input_ids", ids)],
    outputs=[triton.InferRequestedOutput("logits", class_count=3)],
    **KEYED,
)
options = {"request_id": "7", "priority": 1, "timeout": 60_000_000, "parameters": {"temperature": 0.0, "seed": 3}}
answer = {
    "live": [client.is_server_live(), client.is_server_ready(), client.is_model_ready(model, "1", **KEYED)],
    "whole": [text for text in texts for text in texts_of(client.infer(model, text_inputs(text), **KEYED))],
    "id": client.infer(model, text_inputs(texts[0]), **options, **KEYED).get_response(as_json=True)["id"],
    "futures": futures(),
    "asyncio": whole,
    "asyncio stream": over_stream,
    "stream": streamed(),
    "cancelled": cancelled(),
    "classes": texts_of(classes, "logits"),
    "logits": client.infer(model, [tensor("input_ids", ids)], **KEYED).as_numpy("logits").tolist(),
    "ids": ids.tolist(),
    "server": client.get_server_metadata(as_json=True, **KEYED),
    "metadata": client.get_model_metadata(model, as_json=True, **KEYED),
    "config": client.get_model_config(model, as_json=True, **KEYED),
    "index": client.get_model_repository_index(as_json=True, **KEYED),
    "statistics": client.get_inference_statistics(model, as_json=True, **KEYED),
    "log settings": client.get_log_settings(as_json=True, **KEYED),
    "trace settings": client.get_trace_settings(model, as_json=True, **KEYED),
    "memory": client.get_system_shared_memory_status(as_json=True, **KEYED),
    "no key": refused(lambda: client.infer(model, text_inputs(texts[0]))),
    "no model": refused(lambda: client.infer("none", text_inputs(texts[0]), **KEYED)),
    "no time": refused(lambda: client.infer(model, text_inputs(texts[0]), client_timeout=1e-4, **KEYED)),
    "load": refused(lambda: client.load_model(model, **KEYED)),
    "settings": refused(lambda: client.update_log_settings({"log_verbose_level": 1}, **KEYED)),
    "memory use": refused(lambda: client.register_system_shared_memory("a", "/a", 8, **KEYED)),
}
print(json.dumps(answer))

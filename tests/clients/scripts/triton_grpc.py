"""Triton's gRPC client: what it reads of the server; texts whole, at once, by asyncio, and in interleaving streams."""

import asyncio
import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

job = json.loads(sys.argv[1])
url, model, texts = job["url"], job["model"], job["texts"]
headers = {"authorization": f"Bearer {job['key']}"}
DATATYPES = {"int32": "INT32", "bool": "BOOL", "object": "BYTES"}


def tensor(name: str, *values: Any, dtype: Any = object) -> triton.InferInput:
    array = np.array(values, dtype)
    made = triton.InferInput(name, list(array.shape), DATATYPES[array.dtype.name])
    made.set_data_from_numpy(array)
    return made


def inputs(text: str, *, new: int = job["new"], stream: bool = False) -> list[triton.InferInput]:
    switch = "stream" if stream else "exclude_input_in_output"
    return [tensor("text_input", text), tensor("max_tokens", new, dtype=np.int32), tensor(switch, True, dtype=np.bool_)]


def text_of(result: triton.InferResult) -> str:
    return "".join(each.decode() for each in result.as_numpy("text_output").ravel().tolist())


def refused(work: Any) -> list[str]:
    try:
        work()
    except InferenceServerException as error:
        return [str(error.status()), error.message()]
    return []


def streamed(client: triton.InferenceServerClient, timeout: float | None = None) -> dict[str, Any]:
    """All texts over one stream, of which the ids come as they will; then a wrong request, and another right one."""
    arrivals: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: arrivals.put((result, error)), headers=headers, stream_timeout=timeout)
    for number, text in enumerate(texts):
        client.async_stream_infer(model, inputs(text, stream=True), request_id=str(number))
    client.async_stream_infer(model, [tensor("text_output", "a")], request_id="wrong")
    client.async_stream_infer(model, inputs(texts[0], stream=True), request_id="after")
    client.stop_stream()  # closes this side only: what is under way is still answered
    found: dict[str, str] = {}
    order, finals, errors = [], [], []
    while not arrivals.empty():
        result, error = arrivals.get()
        if error is not None:
            errors.append(error.message())
            continue
        response = result.get_response()
        order.append(response.id)
        found[response.id] = found.get(response.id, "") + text_of(result)
        if response.parameters["triton_final_response"].bool_param:
            finals.append(response.id)
    return {"texts": found, "order": order, "finals": sorted(finals), "errors": errors}


def cancelled(client: triton.InferenceServerClient) -> int:
    """How many pieces a long text had come to when its stream was cancelled."""
    arrivals: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: arrivals.put((result, error)), headers=headers)
    client.async_stream_infer(model, inputs(texts[0], new=job["long"], stream=True))
    for _ in range(3):
        assert arrivals.get(timeout=60)[1] is None
    client.stop_stream(cancel_requests=True)
    return 3 + sum(error is None for _, error in arrivals.queue)


async def asynchronous() -> list[str]:
    async with triton_aio.InferenceServerClient(url) as client:
        assert await client.is_server_ready()
        results = [client.infer(model, inputs(text), headers=headers) for text in texts]
        return [text_of(result) for result in await asyncio.gather(*results)]


async def asynchronous_stream() -> str:
    async def asked() -> Any:
        yield {"model_name": model, "inputs": inputs(texts[0], stream=True), "request_id": "1"}

    async with triton_aio.InferenceServerClient(url) as client:
        pieces = []
        async for result, error in client.stream_infer(asked(), headers=headers):
            assert error is None, error
            pieces.append(text_of(result))
        return "".join(pieces)


def at_once(client: triton.InferenceServerClient) -> list[str]:
    arrivals: queue.Queue[Any] = queue.Queue()
    for number, text in enumerate(texts):
        done = lambda result, error, number=number: arrivals.put((number, result, error))  # noqa: E731
        client.async_infer(model, inputs(text), done, headers=headers)
    found = sorted([arrivals.get(timeout=60) for _ in texts], key=lambda each: each[0])
    return [text_of(result) for _, result, _ in found]


client = triton.InferenceServerClient(url)
config = client.get_model_config(model, as_json=True, headers=headers)["config"]
print(
    json.dumps(
        {
            "live": [client.is_server_live(), client.is_server_ready(), client.is_model_ready(model, headers=headers)],
            "server": client.get_server_metadata(as_json=True, headers=headers),
            "metadata": client.get_model_metadata(model, "1", as_json=True, headers=headers),
            "decoupled": config["model_transaction_policy"]["decoupled"],
            "index": client.get_model_repository_index(as_json=True, headers=headers)["models"],
            "log settings": client.get_log_settings(as_json=True, headers=headers),
            "trace settings": client.get_trace_settings(as_json=True, headers=headers),
            "memory": client.get_system_shared_memory_status(as_json=True, headers=headers),
            "whole": [text_of(client.infer(model, inputs(text), headers=headers)) for text in texts],
            "at once": at_once(client),
            "asyncio": asyncio.run(asynchronous()),
            "asyncio stream": asyncio.run(asynchronous_stream()),
            "streamed": streamed(client),
            "cancelled": cancelled(client),
            "statistics": client.get_inference_statistics(model, as_json=True, headers=headers)["model_stats"],
            "no key": refused(lambda: client.infer(model, inputs(texts[0]))),
            "no model": refused(lambda: client.infer("none", inputs(texts[0]), headers=headers)),
            "no input": refused(lambda: client.infer(model, [tensor("text_output", "a")], headers=headers)),
            "too late": refused(
                lambda: client.infer(model, inputs(texts[0], new=job["long"]), headers=headers, client_timeout=0.05)
            ),
            "timeout": refused(
                lambda: client.infer(model, inputs(texts[0], new=job["long"]), headers=headers, timeout=20_000)
            ),
            "load": refused(lambda: client.load_model(model, headers=headers)),
        }
    )
)

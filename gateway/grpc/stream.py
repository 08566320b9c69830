"""`ModelStreamInfer`: many requests over one call, answered as they come to be, which the client tells apart by `id`.

A request that fails is answered with the reason, and the others go on. A client that wants the call to end instead,
with a status, says so in its metadata. When the client has no more requests, those that run are still answered; when
it cancels the call they end, here and in the engine.
"""

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace

from gateway.errors import as_request_error
from gateway.grpc import open_inference_pb2 as pb
from gateway.grpc.calls import GONE, Call, Calls
from gateway.grpc.messages import failure_bytes, infer_request, parse, streamed_bytes
from gateway.request.gateway_state import Gateway
from gateway.routes.kserve import models

AT_ONCE = 256  # requests of one call; more are not read before one of these has ended
ENDS_ON_FAILURE = "triton_grpc_error"


async def stream_infer(gateway: Gateway, calls: Calls, call: Call) -> None:
    """Answer all requests of `call`. Raises RequestError if a failure is to end it."""
    ends_on_failure = call.metadata(ENDS_ON_FAILURE) == ["true"]
    places = asyncio.Semaphore(AT_ONCE)
    try:
        async with asyncio.TaskGroup() as running:
            while await places.acquire() and (raw := await call.read()) is not None:
                task = running.create_task(_answer(gateway, calls, call, raw, ends_on_failure))
                task.add_done_callback(lambda _: places.release())
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _answer(gateway: Gateway, calls: Calls, call: Call, raw: bytes, raises: bool) -> None:
    """Answer one request, with its failure if it has one, unless that `raises`."""
    asked = pb.ModelInferRequest()
    info = replace(call.info, arrival=time.perf_counter(), log_fields={})
    try:
        asked = parse(pb.ModelInferRequest, raw)
        with calls.requests.one():
            model = await models.find_model(gateway, asked.model_name, asked.model_version)
            request = await infer_request(asked, streams=True)
            async with aclosing(models.infer(gateway, info, model, request)) as responses:
                async for response in responses:
                    await call.write(await streamed_bytes(response))
    except GONE:
        raise
    except Exception as error:
        if raises:
            raise
        await call.write(failure_bytes(asked, as_request_error(error).message))

"""The gRPC service over the fake engine, on a socket, and a client of it that knows only names and messages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from gateway.grpc import open_inference_pb2 as pb
from gateway.grpc.server import GrpcServer
from gateway.grpc.service import HEALTH, SERVICE
from gateway.routes.kserve.tensor import Tensor
from tests.gateway.fixtures import ServedApp, serve
from tests.processes import PATIENCE

MODEL = "mock/model"
# Every call with one request: what it answers.
ANSWERS: dict[str, Any] = {
    "ServerLive": pb.ServerLiveResponse,
    "ServerReady": pb.ServerReadyResponse,
    "ModelReady": pb.ModelReadyResponse,
    "ServerMetadata": pb.ServerMetadataResponse,
    "ModelMetadata": pb.ModelMetadataResponse,
    "ModelConfig": pb.ModelConfigResponse,
    "ModelStatistics": pb.ModelStatisticsResponse,
    "ModelInfer": pb.ModelInferResponse,
    "RepositoryIndex": pb.RepositoryIndexResponse,
    "RepositoryModelLoad": pb.Empty,
    "RepositoryModelUnload": pb.Empty,
    "SystemSharedMemoryStatus": pb.Empty,
    "SystemSharedMemoryRegister": pb.Empty,
    "SystemSharedMemoryUnregister": pb.Empty,
    "CudaSharedMemoryStatus": pb.Empty,
    "CudaSharedMemoryRegister": pb.Empty,
    "CudaSharedMemoryUnregister": pb.Empty,
    "TraceSetting": pb.TraceSettingResponse,
    "LogSettings": pb.LogSettingsResponse,
}
Metadata = Sequence[tuple[str, str]]


def path(name: str) -> str:
    return f"/{HEALTH if name == 'Check' else SERVICE}/{name}"


@dataclass
class Client:
    channel: Any

    def unary(self, name: str) -> Any:
        """The call `name`, as bytes go in and out."""
        return self.channel.unary_unary(path(name))

    def raw_stream(self, name: str, metadata: Metadata = ()) -> Any:
        """The call `name`, begun, of which it is left to the caller what and how much is sent."""
        return self.channel.stream_stream(path(name))(metadata=metadata)

    async def call(self, name: str, message: Any = None, **options: Any) -> Any:
        """The answer to `message`. Raises grpc.aio.AioRpcError."""
        sent = b"" if message is None else message.SerializeToString()
        answer = await self.unary(name)(sent, **options)
        return (pb.HealthCheckResponse if name == "Check" else ANSWERS[name]).FromString(answer)

    async def infer(self, message: pb.ModelInferRequest, **options: Any) -> dict[str, list[Any]]:
        """The outputs by name: flat values."""
        return values_of(await self.call("ModelInfer", message, **options))

    async def refusal(self, name: str, message: Any = None, **options: Any) -> grpc.aio.AioRpcError:
        """The error in which a call ends. Fails if it has an answer."""
        try:
            answer = await self.call(name, message, **options)
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError(f"{name} was answered: {answer}")

    def stream(self, metadata: Metadata = ()) -> Any:
        """A `ModelStreamInfer` to write to and read from."""
        call = self.channel.stream_stream(
            path("ModelStreamInfer"),
            request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        return call(metadata=metadata)


@dataclass
class Served:
    app: ServedApp
    server: GrpcServer
    client: Client


@contextlib.asynccontextmanager
async def serving(script: list[int] | None = None, *, most: int = 100, **options: Any) -> AsyncIterator[Served]:
    """The service over `tests.gateway.fixtures.serve`, with a client that is connected."""
    async with serve(script, **options) as app:
        server = GrpcServer(app.gateway, "127.0.0.1:0", most)
        running = asyncio.create_task(server.serve())
        limit = [("grpc.max_receive_message_length", -1)]
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", limit) as channel:
                await asyncio.wait_for(channel.channel_ready(), PATIENCE)
                yield Served(app, server, Client(channel))
        finally:
            await server.stop(0)
            await running


def request(*tensors: Tensor, model: str = MODEL, typed: bool = False, **fields: Any) -> pb.ModelInferRequest:
    """A request with raw tensors, or with `typed` ones: BYTES, BOOL, INT32, INT64, FP32."""
    asked = pb.ModelInferRequest(model_name=model, **fields)
    lists = {"BYTES": "bytes_contents", "BOOL": "bool_contents", "INT32": "int_contents", "INT64": "int64_contents"}
    for tensor in tensors:
        given = asked.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if typed:
            field = lists.get(tensor.datatype, "fp32_contents")
            getattr(given.contents, field).extend(tensor.values.tolist())
        else:
            asked.raw_input_contents.append(tensor.raw())
    return asked


def text(value: str, **inputs: Any) -> list[Tensor]:
    """The inputs of a request to the text model, each of one value."""
    kinds = {str: "BYTES", bool: "BOOL", int: "INT32", float: "FP32"}
    return [Tensor.of(name, kinds[type(each)], [each]) for name, each in {"text_input": value, **inputs}.items()]


def streamed(value: str, id: str, **inputs: Any) -> pb.ModelInferRequest:
    return request(*text(value, stream=True, **inputs), id=id)


def ids(values: Iterable[int]) -> Tensor:
    array = np.array([[*values]], "<i8")
    return Tensor.of("input_ids", "INT64", array, array.shape)


def values_of(answer: pb.ModelInferResponse) -> dict[str, list[Any]]:
    pairs = zip(answer.outputs, answer.raw_output_contents, strict=True)
    tensors = [Tensor.from_raw(each.name, each.datatype, tuple(each.shape), raw) for each, raw in pairs]
    return {
        each.name: [one.decode() for one in each.values] if each.datatype == "BYTES" else each.values.tolist()
        for each in tensors
    }

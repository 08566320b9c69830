"""The calls of `inference.GRPCInferenceService` and of gRPC's health service, each by its name.

Of the health service there is `Check` alone: a client that watches keeps a call open without a key.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from gateway.engine.interface import EngineUnavailable
from gateway.errors import Kind, RequestError
from gateway.grpc import open_inference_pb2 as pb
from gateway.grpc.calls import Call, Calls
from gateway.grpc.messages import infer_request, parse, response_bytes
from gateway.grpc.stream import stream_infer
from gateway.request.gateway_state import Gateway
from gateway.routes.kserve import metadata, models
from gateway.routes.kserve.settings import FIXED, LOG_SETTINGS, NO_SHARED_MEMORY, SETTINGS, TRACE_SETTINGS

SERVICE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

Answer = Callable[[Gateway, Any], Awaitable[Message]]


async def _server_live(gateway: Gateway, _: pb.Empty) -> Message:
    return pb.ServerLiveResponse(live=gateway.alive)


async def _server_ready(gateway: Gateway, _: pb.Empty) -> Message:
    return pb.ServerReadyResponse(ready=gateway.all_ready)


async def _model_ready(gateway: Gateway, asked: pb.ModelRequest) -> Message:
    """False while the engine starts, since clients wait for true; an unknown model is an error."""
    try:
        await models.find_model(gateway, asked.name, asked.version)
    except EngineUnavailable:
        return pb.ModelReadyResponse(ready=False)
    return pb.ModelReadyResponse(ready=gateway.all_ready)


async def _server_metadata(_gateway: Gateway, _: pb.Empty) -> Message:
    return ParseDict(metadata.server(), pb.ServerMetadataResponse())


async def _model_metadata(gateway: Gateway, asked: pb.ModelRequest) -> Message:
    model = await models.find_model(gateway, asked.name, asked.version)
    return ParseDict(metadata.model_metadata(asked.name, model.signature), pb.ModelMetadataResponse())


async def _model_config(gateway: Gateway, asked: pb.ModelRequest) -> Message:
    model = await models.find_model(gateway, asked.name, asked.version)
    return ParseDict({"config": metadata.model_config(asked.name, model.signature)}, pb.ModelConfigResponse())


async def _model_statistics(gateway: Gateway, asked: pb.ModelRequest) -> Message:
    """Of all models if none is named."""
    named = await models.find_model(gateway, asked.name, asked.version) if asked.name else None
    counted = {"model_stats": metadata.statistics(gateway, [named] if named else models.served_models(gateway))}
    return ParseDict(counted, pb.ModelStatisticsResponse(), ignore_unknown_fields=True)


async def _index(gateway: Gateway, _: pb.Empty) -> Message:
    return ParseDict({"models": metadata.index(gateway)}, pb.RepositoryIndexResponse())


async def _trace_settings(_gateway: Gateway, asked: pb.SettingsRequest) -> Message:
    _refuse_changes(asked)
    values = {name: value if isinstance(value, list) else [value] for name, value in TRACE_SETTINGS.items()}
    return ParseDict({"settings": {name: {"value": each} for name, each in values.items()}}, pb.TraceSettingResponse())


async def _log_settings(_gateway: Gateway, asked: pb.SettingsRequest) -> Message:
    _refuse_changes(asked)
    fields = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    settings = {name: {fields[type(value)]: value} for name, value in LOG_SETTINGS.items()}
    return ParseDict({"settings": settings}, pb.LogSettingsResponse())


def _refuse_changes(asked: pb.SettingsRequest) -> None:
    if asked.settings:
        raise RequestError.invalid(SETTINGS)


async def _no_regions(_gateway: Gateway, _: pb.Empty) -> Message:
    """The regions of shared memory: a message without any."""
    return pb.Empty()


def _refused(message: str) -> tuple[type[Message], Answer]:
    async def refuse(_gateway: Gateway, _: pb.Empty) -> Message:
        raise RequestError.invalid(message)

    return pb.Empty, refuse


async def _check(gateway: Gateway, asked: pb.HealthCheckRequest) -> Message:
    if asked.service not in ("", SERVICE, HEALTH):
        raise RequestError(Kind.MODEL_NOT_FOUND, f"the services here are {SERVICE} and {HEALTH}")
    status = pb.HealthCheckResponse
    return status(status=status.SERVING if gateway.all_ready else status.NOT_SERVING)


PROBES: dict[str, tuple[type[Message], Answer]] = {
    "ServerLive": (pb.Empty, _server_live),
    "ServerReady": (pb.Empty, _server_ready),
}
# The calls with one request and one answer: what is read, and what answers it.
UNARY: dict[str, tuple[type[Message], Answer]] = {
    "ModelReady": (pb.ModelRequest, _model_ready),
    "ServerMetadata": (pb.Empty, _server_metadata),
    "ModelMetadata": (pb.ModelRequest, _model_metadata),
    "ModelConfig": (pb.ModelRequest, _model_config),
    "ModelStatistics": (pb.ModelRequest, _model_statistics),
    "RepositoryIndex": (pb.Empty, _index),
    "RepositoryModelLoad": _refused(FIXED),
    "RepositoryModelUnload": _refused(FIXED),
    "SystemSharedMemoryStatus": (pb.Empty, _no_regions),
    "SystemSharedMemoryRegister": _refused(NO_SHARED_MEMORY),
    "SystemSharedMemoryUnregister": _refused(NO_SHARED_MEMORY),
    "CudaSharedMemoryStatus": (pb.Empty, _no_regions),
    "CudaSharedMemoryRegister": _refused(NO_SHARED_MEMORY),
    "CudaSharedMemoryUnregister": _refused(NO_SHARED_MEMORY),
    "TraceSetting": (pb.SettingsRequest, _trace_settings),
    "LogSettings": (pb.SettingsRequest, _log_settings),
}


async def _unary(gateway: Gateway, kind: type[Message], answer: Answer, call: Call) -> None:
    reply = await answer(gateway, parse(kind, await call.read_one()))
    await call.write(reply.SerializeToString())


async def _model_infer(gateway: Gateway, call: Call) -> None:
    asked = parse(pb.ModelInferRequest, await call.read_one())
    model = await models.find_model(gateway, asked.model_name, asked.model_version)
    request = await infer_request(asked, streams=False)
    await call.write(await response_bytes(await models.infer_once(gateway, call.info, model, request)))


def handlers(gateway: Gateway, calls: Calls) -> list[Any]:
    """gRPC's handlers of both services.

    Probes ask for no key. They are not served where `--admin-exclusive` keeps them to a port of their own.
    """
    unary = {name: partial(_unary, gateway, *row) for name, row in UNARY.items()}
    unary["ModelInfer"] = partial(_model_infer, gateway)
    inference = {name: calls.handler(SERVICE, name, serve, calls.requests) for name, serve in unary.items()}
    stream = partial(stream_infer, gateway, calls)
    inference["ModelStreamInfer"] = calls.handler(SERVICE, "ModelStreamInfer", stream, calls.streams)
    health = {}
    if not gateway.options.admin_exclusive:
        for name, row in PROBES.items():
            inference[name] = calls.handler(SERVICE, name, partial(_unary, gateway, *row), None)
        check = partial(_unary, gateway, pb.HealthCheckRequest, _check)
        health["Check"] = calls.handler(HEALTH, "Check", check, None)
    generic = grpc.method_handlers_generic_handler
    return [generic(SERVICE, inference), generic(HEALTH, health)]

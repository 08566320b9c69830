"""What the calls beside inference answer: the same as HTTP's, which is tested to be Triton's."""

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from gateway.grpc import open_inference_pb2 as pb
from gateway.grpc.service import HEALTH, SERVICE
from gateway.routes.kserve.settings import LOG_SETTINGS, TRACE_SETTINGS
from tests.gateway.grpc.serving import ANSWERS, MODEL, serving

Code = grpc.StatusCode


def plain(message: object) -> object:
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [MODEL, f"{MODEL}_tokenizer", f"{MODEL}_logits", "ensemble"])
async def test_models_are_described_as_over_http(model: str) -> None:
    async with serving() as served:
        get, named = served.app.http.get, pb.ModelRequest(name=model)
        metadata = await served.client.call("ModelMetadata", named)
        theirs = (await get(f"/v2/models/{model}")).json()
        assert (metadata.name, metadata.platform, list(metadata.versions)) == (model, theirs["platform"], ["1"])
        for ours, expected in ((metadata.inputs, theirs["inputs"]), (metadata.outputs, theirs["outputs"])):
            assert [{"name": x.name, "datatype": x.datatype, "shape": list(x.shape)} for x in ours] == expected
        config = (await served.client.call("ModelConfig", named)).config
        theirs = (await get(f"/v2/models/{model}/config")).json()
        assert config.model_transaction_policy.decoupled is theirs["model_transaction_policy"]["decoupled"]
        kind = pb.DataType.Name
        assert [
            {"name": x.name, "data_type": kind(x.data_type), "dims": list(x.dims), "optional": x.optional}
            for x in config.input
        ] == theirs["input"]
        assert [(x.name, x.label_filename) for x in config.output] == [
            (x["name"], x["label_filename"]) for x in theirs["output"]
        ]


async def test_the_server_and_its_index_are_as_over_http() -> None:
    async with serving() as served:
        assert plain(await served.client.call("ServerMetadata")) == (await served.app.http.get("/v2")).json()
        index = await served.client.call("RepositoryIndex")
        assert plain(index) == {"models": (await served.app.post("/v2/repository/index", {})).json()}


async def test_settings_can_be_read_and_not_changed() -> None:
    async with serving() as served:
        log = await served.client.call("LogSettings", pb.SettingsRequest())
        assert {name: getattr(x, x.WhichOneof("choice")) for name, x in log.settings.items()} == LOG_SETTINGS
        trace = await served.client.call("TraceSetting", pb.SettingsRequest())
        values = {name: list(x.value) for name, x in trace.settings.items()}
        assert values == {name: x if isinstance(x, list) else [x] for name, x in TRACE_SETTINGS.items()}
        for name in ("LogSettings", "TraceSetting"):
            error = await served.client.refusal(name, pb.SettingsRequest(settings={"trace_level": pb.Empty()}))
            assert error.code() == Code.INVALID_ARGUMENT and "settings are fixed" in error.details()


@pytest.mark.parametrize("name", [name for name in ANSWERS if "Shared" in name or name.startswith("RepositoryModel")])
async def test_models_and_shared_memory_are_refused_by_name(name: str) -> None:
    async with serving() as served:
        if name.endswith("Status"):
            assert await served.client.call(name) == pb.Empty()
        else:
            error = await served.client.refusal(name)
            assert error.code() == Code.INVALID_ARGUMENT
            assert ("models are fixed" if "Model" in name else "shared memory is not") in error.details()


async def test_health_is_that_of_grpcs_own_service() -> None:
    async with serving() as served:
        for service in ("", SERVICE, HEALTH):
            answer = await served.client.call("Check", pb.HealthCheckRequest(service=service))
            assert answer.status == pb.HealthCheckResponse.SERVING
        assert (await served.client.refusal("Check", pb.HealthCheckRequest(service="a"))).code() == Code.NOT_FOUND
        served.app.gateway.draining = True
        assert (await served.client.call("Check")).status == pb.HealthCheckResponse.NOT_SERVING

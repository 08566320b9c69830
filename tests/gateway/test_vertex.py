"""Vertex AI's route: instances of both kinds in one call, in order, all or nothing."""

from typing import Any

import pytest

from tests.gateway.fixtures import serve
from tests.gateway.toys import FAIL_TEXT

CHAT = {"messages": [{"role": "user", "content": "lo"}]}


async def test_predictions_stand_in_the_order_of_instances() -> None:
    async with serve() as served:
        short = {"inputs": "lo", "parameters": {"max_new_tokens": 1}}
        response = await served.post("/vertex", instances=[short, CHAT, {"inputs": "lo"}])
        assert response.json() == {"predictions": ["hel", "hello world", "hello world"]}


async def test_parameters_are_honoured() -> None:
    async with serve() as served:
        parameters = {"temperature": 0.5, "seed": 7, "stop": ["world"]}
        await served.post("/vertex", instances=[{"inputs": "lo", "parameters": parameters}])
        [request] = served.engine.requests
        assert (request.sampling.temperature, request.sampling.seed) == (0.5, 7)


@pytest.mark.parametrize(
    ("instances", "part"),
    [
        ([], "instances"),
        (None, "instances"),
        ([{}], "instances[0].inputs"),
        ([{"inputs": 3}], "instances[0].inputs"),
        ([{"messages": []}], "instances[0].messages"),
        ([{"inputs": "lo", "parameters": {"top_p": 3.0}}], "top_p"),
        ([{"inputs": "lo"}] * 129, "129"),
    ],
)
async def test_a_wrong_instance_is_422_and_named(instances: Any, part: str) -> None:
    async with serve() as served:
        response = await served.post("/vertex", instances=instances)
        assert response.status_code == 422
        assert part in response.json()["error"]
        assert served.gateway.admission.active == 0


async def test_one_failing_instance_fails_the_call_and_ends_the_others() -> None:
    async with serve() as served:
        bad = {"inputs": FAIL_TEXT, "parameters": {"truncate": 1}}
        response = await served.post("/vertex", instances=[{"inputs": "lo"}, bad])
        assert response.status_code == 424
        assert (served.engine.open, served.gateway.admission.active) == (0, 0)

"""Vertex AI's route: instances of both kinds in one call, in order, all or nothing."""

import re
from typing import Any

import pytest

from gateway.config.command_line import parse
from jaxengine.options.option import UsageError
from tests.gateway.fixtures import serve
from tests.gateway.toys import FAIL_TEXT

CHAT = {"messages": [{"role": "user", "content": "lo"}]}


async def test_predictions_stand_in_the_order_of_instances() -> None:
    async with serve() as app:
        short = {"inputs": "lo", "parameters": {"max_new_tokens": 1}}
        response = await app.post("/vertex", instances=[short, CHAT, {"inputs": "lo"}])
        assert response.json() == {"predictions": ["hel", "hello world", "hello world"]}


async def test_parameters_are_honoured() -> None:
    async with serve() as app:
        parameters = {"temperature": 0.5, "seed": 7, "stop": ["world"]}
        await app.post("/vertex", instances=[{"inputs": "lo", "parameters": parameters}])
        [request] = app.engine.requests
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
    async with serve() as app:
        response = await app.post("/vertex", instances=instances)
        assert response.status_code == 422
        assert part in response.json()["error"]
        assert app.gateway.admission.active == 0


async def test_one_failing_instance_fails_the_call_and_ends_the_others() -> None:
    async with serve() as app:
        bad = {"inputs": FAIL_TEXT, "parameters": {"truncate": 1}}
        response = await app.post("/vertex", instances=[{"inputs": "lo"}, bad])
        assert response.status_code == 424
        assert (app.engine.open, app.gateway.admission.active) == (0, 0)


ROUTE = "/v1/models/mock:predict"  # within a route of our own


async def test_the_routes_that_vertex_ai_assigns_are_served_beside_ours() -> None:
    async with serve(aip_predict_route=ROUTE, aip_health_route="/v1/models/mock") as app:
        assert (await app.post(ROUTE, instances=[CHAT])).json() == {"predictions": ["hello world"]}
        assert (await app.post(ROUTE, instances=[])).status_code == 422
        assert (await app.http.get("/v1/models/mock")).status_code == 200
        app.engine.ready = False
        assert (await app.http.get("/v1/models/mock")).status_code == 503


async def test_an_assigned_prediction_route_asks_for_the_key_and_its_probe_does_not() -> None:
    async with serve(aip_predict_route=ROUTE, aip_health_route="/alive", api_key="hush") as app:
        assert (await app.post(ROUTE, instances=[CHAT])).status_code == 401
        assert (await app.http.get("/alive")).status_code == 200


def test_the_port_that_vertex_ai_assigns_is_the_port() -> None:
    assert parse([], {"AIP_HTTP_PORT": "8080", "PORT": "80"}).port == 8080


@pytest.mark.parametrize("route", ["predict", "/{anything}", "/a?b", "/ä"])
def test_an_assigned_route_must_be_a_plain_path(route: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"AIP_PREDICT_ROUTE {route!r} must be a path")):
        parse([], {"AIP_PREDICT_ROUTE": route})

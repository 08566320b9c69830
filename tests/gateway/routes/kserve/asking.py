"""What the tests of `infer` ask with: inputs in JSON, and the answer's outputs or its refusal."""

from typing import Any

from gateway.routes.kserve.responses import Inference
from tests.gateway.fixtures import ServedApp

TEXT = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["lo"]}
IDS = {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [[5, 6, 7]]}


def path(model: str) -> str:
    return f"/v2/models/{model}/infer"


def tensor(name: str, datatype: str, *values: Any) -> dict[str, Any]:
    return {"name": name, "shape": [len(values)], "datatype": datatype, "data": [*values]}


async def infer(app: ServedApp, model: str, *inputs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The outputs by name: flat values, as JSON has them."""
    response = await app.post(path(model), {"inputs": inputs, **fields})
    assert response.status_code == 200, response.text
    answer = response.json()
    Inference.model_validate(answer, strict=True)  # as documented
    return {each["name"]: each["data"] for each in answer["outputs"]}


async def refused(app: ServedApp, model: str, *inputs: dict[str, Any], status: int = 400, **fields: Any) -> str:
    response = await app.post(path(model), {"inputs": inputs, **fields})
    assert response.status_code == status, response.text
    assert response.json().keys() == {"error"}
    return str(response.json()["error"])

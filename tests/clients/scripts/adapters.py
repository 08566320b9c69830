"""Adapters by the `openai` SDK, which gives their names as `model`, and by huggingface_hub's `adapter_id`."""

import json
import sys

import httpx
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError
from openai import NotFoundError, OpenAI

job = json.loads(sys.argv[1])
openai = OpenAI(base_url=job["url"] + "/v1", api_key="unused", max_retries=0)
hub = InferenceClient(job["url"], timeout=60)


def manage(route: str, **body: str) -> None:
    """By the SDK's own way of calling a route that it does not know."""
    openai.post(route, body=body, cast_to=httpx.Response)


def answers(name: str) -> dict[str, object]:
    completion = openai.completions.create(model=name, prompt=job["prompt"], max_tokens=9)
    ask = {"adapter_id": name, "max_new_tokens": 9, "return_full_text": False}
    chunks = list(openai.completions.create(model=name, prompt=job["prompt"], max_tokens=9, stream=True))
    return {
        "card": openai.models.retrieve(name).id,
        "model": [completion.model, *{chunk.model for chunk in chunks}],
        "completion": completion.choices[0].text,
        "stream": "".join(chunk.choices[0].text for chunk in chunks),
        "hub": hub.text_generation(job["prompt"], **ask),
        "hub_stream": "".join(hub.text_generation(job["prompt"], **ask, stream=True)),
    }


def refusals(name: str) -> list[str]:
    found = []
    for call, expected in (
        (lambda: openai.completions.create(model=name, prompt="a"), NotFoundError),
        (lambda: openai.models.retrieve(name), NotFoundError),
        (lambda: hub.text_generation("a", adapter_id=name), ValidationError),
    ):
        try:
            call()
        except expected as error:
            found.append(str(error))
    return found


manage("/load_lora_adapter", lora_name=job["new"], lora_path=job["path"])
seen = {name: answers(name) for name in [*job["names"], job["new"]]}
listed = [model.id for model in openai.models.list().data]
manage("/unload_lora_adapter", lora_name=job["new"])
print(json.dumps({"seen": seen, "listed": listed, "refusals": refusals(job["new"])}))

"""What the `openai` SDK, validating strictly, makes of recorded answers of `/v1/responses`."""

import json
import sys

import httpx
from openai import APIError, OpenAI

job = json.loads(sys.argv[1])


def client(body: str, content_type: str) -> OpenAI:
    """One that is answered `body`, whatever it asks."""
    answer = httpx.MockTransport(lambda _: httpx.Response(200, text=body, headers={"content-type": content_type}))
    http = httpx.Client(transport=answer)
    return OpenAI(base_url="http://server/v1", api_key="a", http_client=http, _strict_response_validation=True)


def items(response: object) -> list:
    texts = [each.arguments if each.type == "function_call" else each.content[0].text for each in response.output]
    return [[each.type, text] for each, text in zip(response.output, texts, strict=True)]


def streamed(body: str) -> dict:
    seen: dict = {"kinds": [], "deltas": ""}
    try:
        with client(body, "text/event-stream").responses.stream(model="m", input="lo") as stream:
            for event in stream:
                seen["kinds"] += [event.type] if event.type not in seen["kinds"] else []
                seen["deltas"] += event.delta if event.type.endswith(".delta") else ""
            seen["items"] = items(stream.get_final_response())
    except APIError as error:
        seen["error"] = [str(error), error.code, error.type]
    return seen


whole = client(job["whole"], "application/json").responses.create(model="m", input="lo")
print(json.dumps({"whole": items(whole), "stream": streamed(job["stream"]), "broken": streamed(job["broken"])}))

"""Every parameter that a client of TGI has for generating, TGI's own client or huggingface_hub: streamed and not."""

import inspect
import json
import sys
from functools import partial

job = json.loads(sys.argv[1])
if job["client"] == "text_generation":
    from text_generation import Client
    from text_generation.errors import ValidationError

    client = Client(job["url"], timeout=60)
    parameters, whole, stream = inspect.signature(client.generate).parameters, client.generate, client.generate_stream
else:
    from huggingface_hub import InferenceClient
    from huggingface_hub.errors import ValidationError

    client = InferenceClient(job["url"], timeout=60)
    parameters = inspect.signature(client.text_generation).parameters
    whole = partial(client.text_generation, details=True)
    stream = partial(client.text_generation, details=True, stream=True)


def refusal(**field: object) -> str | None:
    try:
        whole(**{**job["served"], **field})
    except ValidationError as error:
        return str(error)
    return None


answer = whole(**job["served"], **job["whole"])
events = list(stream(**job["served"]))
best = whole(**{**job["served"], **job["whole"], "seed": None, "best_of": 2})
print(
    json.dumps(
        {
            "parameters": sorted(parameters),
            "text": answer.generated_text,
            "ids": [token.id for token in answer.details.tokens],
            "top_tokens": [len(each) for each in answer.details.top_tokens],
            "seed": answer.details.seed,
            "stream_ids": [event.token.id for event in events],
            "stream_text": events[-1].generated_text,
            "stream_top_tokens": [len(event.top_tokens) for event in events],
            "others": len(best.details.best_of_sequences),
            "refused": {name: refusal(**{name: value}) for name, value in job["refused"].items()},
        }
    )
)

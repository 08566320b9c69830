"""Every parameter of huggingface_hub's `InferenceClient.chat_completion`: streamed and not, or refused by name."""

import inspect
import json
import sys

from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

job = json.loads(sys.argv[1])
client = InferenceClient(job["url"], timeout=60)


def refused(name: str, value: object) -> str | None:
    try:
        client.chat_completion(**{**job["served"], name: value})
    except HfHubHTTPError as error:
        return error.response.json()["error"]["param"]
    return None


answer = client.chat_completion(**job["served"])
chunks = list(client.chat_completion(**job["served"], stream=True, stream_options={"include_usage": True}))
choices = [choice for chunk in chunks for choice in chunk.choices]
count = job["served"]["n"]
print(
    json.dumps(
        {
            "parameters": sorted(set(inspect.signature(client.chat_completion).parameters) - {"extra_body"}),
            "texts": [choice.message.content for choice in answer.choices],
            "streamed": ["".join(c.delta.content or "" for c in choices if c.index == i) for i in range(count)],
            "logprobs": [len(entry.top_logprobs) for entry in answer.choices[0].logprobs.content],
            "usage": [answer.usage.completion_tokens, chunks[-1].usage.completion_tokens],
            "refused": {name: refused(name, value) for name, value in job["refused"].items()},
        }
    )
)

"""Every parameter of the `chat` of TGI's own client. Its stream is left out: it looks at a field no response has."""

import inspect
import json
import sys

from text_generation import Client
from text_generation.errors import BadRequestError

job = json.loads(sys.argv[1])
client = Client(job["url"], timeout=60)


def refusal(**field: object) -> str | None:
    try:
        client.chat(**{**job["served"], **field})
    except BadRequestError as error:
        return str(error)
    return None


answers = [client.chat(**job["served"]) for _ in range(2)]
print(
    json.dumps(
        {
            "parameters": sorted(inspect.signature(client.chat).parameters),
            "texts": [[choice.message.content for choice in answer.choices] for answer in answers],
            "top": [
                [len(each["top_logprobs"]) for each in choice.logprobs["content"]] for choice in answers[0].choices
            ],
            "usage": answers[0].usage["completion_tokens"],
            "refused": {name: refusal(**{name: value}) for name, value in job["refused"].items()},
        }
    )
)

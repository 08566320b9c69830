"""Every parameter that the `openai` SDK has for a route, and its own strict check of what is answered.

Chunks of a completion are not checked: the SDK has one type for them and for the whole, whose `finish_reason` is never
null, as it is in all chunks but the last.
"""

import inspect
import json
import sys

from openai import BadRequestError, OpenAI

job = json.loads(sys.argv[1])
server = {"base_url": job["url"] + "/v1", "api_key": "unused", "max_retries": 0}
strict, lax = OpenAI(**server, _strict_response_validation=True), OpenAI(**server)
if job["route"] == "chat":
    create = stream = strict.chat.completions.create
else:
    create, stream = strict.completions.create, lax.completions.create
OF_THE_CALL = {"extra_headers", "extra_query", "extra_body", "timeout"}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


def refused(name: str, value: object) -> str | None:
    try:
        create(**{**job["served"], name: value})
    except BadRequestError as error:
        return error.param
    return None


def text(part: object) -> str:
    return (part.text if job["route"] == "completions" else part.delta.content) or ""


answer, chunks = create(**job["served"]), list(stream(**job["served"], **STREAMED))
choices = [choice for chunk in chunks for choice in chunk.choices]
streamed = ["".join(text(each) for each in choices if each.index == index) for index in range(job["served"]["n"])]
print(
    json.dumps(
        {
            "parameters": sorted(set(inspect.signature(create).parameters) - OF_THE_CALL),
            "texts": [getattr(each, "text", None) or each.message.content for each in answer.choices],
            "streamed": streamed,
            "usage": [answer.usage.completion_tokens, chunks[-1].usage.completion_tokens],
            "refused": {name: refused(name, value) for name, value in job["refused"].items()},
        }
    )
)

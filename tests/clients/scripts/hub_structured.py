"""huggingface_hub's `InferenceClient` with `response_format`, `tools` and `grammar`."""

import json
import sys

from huggingface_hub import InferenceClient

job = json.loads(sys.argv[1])
client = InferenceClient(job["url"], timeout=60)
ask = {"messages": [{"role": "user", "content": job["user"]}], "max_tokens": 300, "temperature": 1.5, "seed": 5}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": job["schema"], "strict": True}}
TOOL = {"type": "function", "function": {"name": "record", "description": "Records it.", "parameters": job["schema"]}}


def call(answer: object) -> list:
    """The first: a tool that is required may be called several times."""
    first, *_ = answer.choices[0].message.tool_calls
    return [first.function.name, first.function.arguments, bool(first.id)]


def streamed_call(chunks: list) -> list[str]:
    calls = [each for chunk in chunks for choice in chunk.choices for each in choice.delta.tool_calls or []]
    return [
        "".join(each.function.name or "" for each in calls),
        "".join(each.function.arguments or "" for each in calls),
    ]


one = {"tools": [TOOL], "tool_choice": {"function": {"name": "record"}}}
regex = client.text_generation(
    job["prompt"],
    grammar={"type": "regex", "value": job["regex"]},
    max_new_tokens=60,
    do_sample=True,
    temperature=1.5,
    return_full_text=False,
)
text = client.text_generation(
    job["prompt"],
    grammar={"type": "json", "value": job["schema"]},
    max_new_tokens=300,
    do_sample=True,
    temperature=1.5,
    return_full_text=False,
)
print(
    json.dumps(
        {
            "response_format": client.chat_completion(**ask, response_format=SCHEMA).choices[0].message.content,
            "required": call(client.chat_completion(**ask, tools=[TOOL], tool_choice="required")),
            "named": call(client.chat_completion(**ask, **one)),
            "stream": streamed_call(list(client.chat_completion(**ask, **one, stream=True))),
            "regex": regex,
            "json": text,
        }
    )
)

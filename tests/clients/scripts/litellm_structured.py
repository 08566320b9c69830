"""LiteLLM with `response_format` and `tools`, through both providers by which it reaches such servers."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import asks a server on the internet

import litellm

litellm.suppress_debug_info = True  # it prints advice where the answer goes
job = json.loads(sys.argv[1])
server = {"api_base": f"{job['url']}/v1", "api_key": "-", "num_retries": 0}
ask = {
    "messages": [{"role": "user", "content": job["user"]}],
    "max_tokens": 300,
    "temperature": 1.5,
    "seed": 5,
    **server,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": job["schema"], "strict": True}}
TOOL = {"type": "function", "function": {"name": "record", "description": "Records it.", "parameters": job["schema"]}}
TOOLS = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "record"}}}


def call(message: object) -> list[str]:
    (one,) = message.tool_calls
    return [one.function.name, one.function.arguments]


answers = {}
for provider in ("openai", "hosted_vllm"):
    model = f"{provider}/{job['model']}"
    chunks = list(litellm.completion(model, **ask, **TOOLS, stream=True))
    answers[provider] = {
        "json": litellm.completion(model, **ask, response_format=SCHEMA).choices[0].message.content,
        "call": call(litellm.completion(model, **ask, **TOOLS).choices[0].message),
        "stream": call(litellm.stream_chunk_builder(chunks).choices[0].message),
    }
print(json.dumps(answers))

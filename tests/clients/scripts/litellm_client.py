"""LiteLLM, as its own users and many gateways call an OpenAI-compatible server."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import asks a server on the internet

import litellm

litellm.suppress_debug_info = True  # it prints advice where the answer goes
job = json.loads(sys.argv[1])
server = {"api_base": f"{job['url']}/v1", "api_key": "-", "num_retries": 0}
ask = {"messages": [{"role": "user", "content": job["user"]}], "max_tokens": 40, "temperature": 0, **server}
complete = {"prompt": job["prompt"], "max_tokens": 40, "temperature": 0, **server}


def caught(**fields: object) -> dict:
    try:
        litellm.completion(**{**ask, **fields})
    except Exception as error:
        return {"class": type(error).__name__, "status": getattr(error, "status_code", None)}
    return {"class": None}


def streamed(provider: str) -> tuple[str, int]:
    options = {"include_usage": True}
    chunks = list(litellm.completion(f"{provider}/{job['model']}", **ask, stream=True, stream_options=options))
    whole = litellm.stream_chunk_builder(chunks)
    return whole.choices[0].message.content, whole.usage.completion_tokens


answers = {}
for provider in ("openai", "hosted_vllm"):
    answer = litellm.completion(f"{provider}/{job['model']}", **ask, logprobs=True)
    text, usage = streamed(provider)
    answers[provider] = {
        "chat": answer.choices[0].message.content,
        "finish_reason": answer.choices[0].finish_reason,
        "usage": answer.usage.completion_tokens,
        "logprobs": len(answer.choices[0].logprobs.content),
        "stream": text,
        "stream_usage": usage,
    }
written = litellm.text_completion(model=f"text-completion-openai/{job['model']}", **complete)
answers["completion"] = written.choices[0].text
answers["too_long"] = caught(model=f"openai/{job['model']}", max_tokens=10**6)
answers["wrong_value"] = caught(model=f"openai/{job['model']}", temperature=9)
answers["unknown_model"] = caught(model="openai/other")
print(json.dumps(answers))

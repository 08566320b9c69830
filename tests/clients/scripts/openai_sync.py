"""The `openai` SDK, synchronous: models, chat and completions, streamed and not."""

import json
import sys

from openai import OpenAI

job = json.loads(sys.argv[1])
client = OpenAI(base_url=job["url"] + "/v1", api_key="unused", max_retries=0)
model = client.models.list().data[0].id
ask = {"model": model, "messages": [{"role": "user", "content": job["user"]}], "max_tokens": 40, "temperature": 0}
complete = {"model": model, "prompt": job["prompt"], "max_tokens": 40, "temperature": 0}

chat = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
completion = client.completions.create(**complete)
with client.chat.completions.stream(**{**ask, "model": "tgi"}) as stream:
    added_up = stream.get_final_completion().choices[0].message
pieces = list(client.completions.create(**complete, stream=True))
print(
    json.dumps(
        {
            "model": model,
            "chat": chat.choices[0].message.content,
            "finish_reason": chat.choices[0].finish_reason,
            "logprobs": len(chat.choices[0].logprobs.content),
            "usage": chat.usage.completion_tokens,
            "chat_stream": "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices),
            "chat_stream_usage": chunks[-1].usage.completion_tokens,
            "added_up": [added_up.role, added_up.content],
            "completion": completion.choices[0].text,
            "completion_stream": "".join(c.text for piece in pieces for c in piece.choices),
        }
    )
)

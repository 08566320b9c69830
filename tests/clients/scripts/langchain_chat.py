"""langchain-openai: a chat model and a completion model, invoked and streamed."""

import json
import sys

from langchain_openai import ChatOpenAI, OpenAI

job = json.loads(sys.argv[1])
settings = {"base_url": job["url"] + "/v1", "api_key": "unused", "model": job["model"], "temperature": 0}
chat, completion = ChatOpenAI(**settings, max_tokens=40), OpenAI(**settings, max_tokens=40)

message = chat.invoke(job["user"])
print(
    json.dumps(
        {
            "chat": message.content,
            "usage": message.usage_metadata["output_tokens"],
            "chat_stream": "".join(chunk.content for chunk in chat.stream(job["user"])),
            "completion": completion.invoke(job["prompt"]),
            "completion_stream": "".join(completion.stream(job["prompt"])),
        }
    )
)

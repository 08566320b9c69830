"""A question about an image in a message and in the result of a tool, by the `anthropic` SDK."""

import json
import sys

import anthropic

job = json.loads(sys.argv[1])
client = anthropic.Anthropic(base_url=job["url"], api_key="unused", max_retries=0)
block = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": job["image"].partition(",")[2]},
}
content = [block, {"type": "text", "text": job["text"]}]
ask = {"model": "tgi", "messages": [{"role": "user", "content": content}]}
message = client.messages.create(**ask, max_tokens=job["tokens"], extra_body={"temperature": 0})
print(
    json.dumps(
        {
            "anthropic": "".join(block.text for block in message.content if block.type == "text"),
            "input_tokens": message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0),
            "counted": client.messages.count_tokens(**ask).input_tokens,
        }
    )
)

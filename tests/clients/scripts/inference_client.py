"""huggingface_hub's `InferenceClient` on a server of one's own: text generation and chat, streamed and not."""

import json
import sys

from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError, ValidationError

job = json.loads(sys.argv[1])
client = InferenceClient(job["url"], timeout=60)
LIMIT = {"max_new_tokens": 40}
prompt, messages = job["prompt"], [{"role": "user", "content": job["user"]}]

details = client.text_generation(prompt, **LIMIT, details=True, return_full_text=False)
events = list(client.text_generation(prompt, **LIMIT, details=True, stream=True))
chat = client.chat_completion(messages, max_tokens=40, temperature=0)
chunks = list(client.chat_completion(messages, max_tokens=40, temperature=0, stream=True))
try:
    client.text_generation(prompt, temperature=-1)
except ValidationError as error:
    refusal = str(error)
try:
    InferenceClient(job["url"] + "/nowhere", timeout=60).text_generation(prompt)
except HfHubHTTPError as error:
    nowhere = error.response.status_code
print(
    json.dumps(
        {
            "full_text": client.text_generation(prompt, **LIMIT),
            "text": details.generated_text,
            "ids": [token.id for token in details.details.tokens],
            "stream": "".join(client.text_generation(prompt, **LIMIT, stream=True)),
            "stream_ids": [event.token.id for event in events],
            "chat": chat.choices[0].message.content,
            "chat_stream": "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices),
            "refusal": refusal,
            "nowhere": nowhere,
        }
    )
)

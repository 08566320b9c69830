"""An image in the prompt of TGI's own client, and of huggingface_hub's text generation."""

import json
import sys

from huggingface_hub import InferenceClient
from text_generation import Client

job = json.loads(sys.argv[1])
ask = {"max_new_tokens": job["tokens"]}
client = Client(job["url"], timeout=60)
hub = InferenceClient(job["url"], timeout=60).text_generation(
    job["prompt"],
    **ask,
    details=True,
    return_full_text=False,  # else the image's text is told too
)
details = client.generate(job["prompt"], **ask)
print(
    json.dumps(
        {
            "text_generation": details.generated_text,
            "stream": [each.token.id for each in client.generate_stream(job["prompt"], **ask)],
            "ids": [token.id for token in details.details.tokens],
            "hub": hub.generated_text,
        }
    )
)

"""TGI's own client: `generate`, `generate_stream`, the asynchronous one, and the exceptions it maps errors to."""

import asyncio
import json
import sys

from text_generation import AsyncClient, Client
from text_generation.errors import NotFoundError, ValidationError

job = json.loads(sys.argv[1])
client = Client(job["url"], timeout=60)
LIMIT = {"max_new_tokens": 40}


async def generate_later() -> list[int]:
    stream = AsyncClient(job["url"], timeout=60).generate_stream(job["prompt"], **LIMIT)
    return [answer.token.id async for answer in stream]


answer = client.generate(job["prompt"], **LIMIT)
stream = list(client.generate_stream(job["prompt"], **LIMIT))
try:
    client.generate("a " * 20_000, max_new_tokens=1)
except ValidationError as error:
    refusal = str(error)
try:
    Client(job["url"] + "/nowhere", timeout=60).generate(job["prompt"])
except NotFoundError as error:
    nowhere = str(error)
print(
    json.dumps(
        {
            "text": answer.generated_text,
            "ids": [token.id for token in answer.details.tokens],
            "finish_reason": answer.details.finish_reason,
            "stream_ids": [each.token.id for each in stream],
            "stream_text": stream[-1].generated_text,
            "async_stream_ids": asyncio.run(generate_later()),
            "refusal": refusal,
            "nowhere": nowhere,
        }
    )
)

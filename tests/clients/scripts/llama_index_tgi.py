"""llama-index's class for TGI, and inside it `tgi`, TGI's own client as it is since TGI 2.4: chats, streamed and not.

The synchronous stream of that client takes `[DONE]` for JSON, after all its chunks; the asynchronous one knows it.
"""

import asyncio
import json
import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.text_generation_inference import TextGenerationInference
from tgi import AsyncClient
from tgi.types import Message

job = json.loads(sys.argv[1])
llm = TextGenerationInference(job["url"], temperature=0, max_tokens=40)
question = [ChatMessage(role="user", content=job["user"])]


def streamed() -> str:
    text = ""
    try:
        for answer in llm.stream_chat(question):
            text += answer.delta
    except json.JSONDecodeError as error:
        assert "[DONE]" in error.doc
    return text


async def streamed_async() -> str:
    return "".join([answer.delta async for answer in await llm.astream_chat(question)])


async def deltas() -> list:
    client = AsyncClient(job["url"])
    chunks = await client.chat([Message(role="user", content=job["user"])], stream=True, temperature=0, max_tokens=40)
    return [chunk.choices[0].delta async for chunk in chunks]


each = asyncio.run(deltas())
print(
    json.dumps(
        {
            "model": llm.model_name,
            "chat": llm.chat(question).message.content,
            "stream": streamed(),
            "async_stream": asyncio.run(streamed_async()),
            "client_stream": "".join(delta.content for delta in each),
            "roles": sorted({delta.role for delta in each}),
        }
    )
)

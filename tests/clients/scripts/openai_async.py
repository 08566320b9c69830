"""The `openai` SDK, asynchronous: four chats at once, two of them streamed."""

import asyncio
import json
import sys

from openai import AsyncOpenAI

job = json.loads(sys.argv[1])


async def whole(client: AsyncOpenAI, ask: dict) -> str:
    return (await client.chat.completions.create(**ask)).choices[0].message.content


async def streamed(client: AsyncOpenAI, ask: dict) -> str:
    chunks = [chunk async for chunk in await client.chat.completions.create(**ask, stream=True)]
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


async def main() -> list[str]:
    async with AsyncOpenAI(base_url=job["url"] + "/v1", api_key="unused", max_retries=0) as client:
        model = (await client.models.list()).data[0].id
        messages = [{"role": "user", "content": job["user"]}]
        ask = {"model": model, "messages": messages, "max_tokens": 40, "temperature": 0}
        return await asyncio.gather(*(way(client, ask) for way in (whole, streamed, whole, streamed)))


print(json.dumps({"chats": asyncio.run(main())}))

"""Embeddings by the `openai` SDK, which asks for base64 unless told otherwise, and by LangChain."""

import asyncio
import json
import sys

from langchain_openai import OpenAIEmbeddings
from openai import AsyncOpenAI, BadRequestError, OpenAI

job = json.loads(sys.argv[1])
base, texts = job["url"] + "/v1", job["texts"]
options = {"base_url": base, "api_key": job["key"], "max_retries": 0}
client = OpenAI(**options)
strict = OpenAI(**options, _strict_response_validation=True)  # its type knows floats alone, though it asks for base64


def vectors(answer: object) -> list[list[float]]:
    return [each.embedding for each in answer.data]


async def asynchronous() -> list[list[float]]:
    async with AsyncOpenAI(**options) as client:
        return vectors(await client.embeddings.create(model="tgi", input=texts))


def refused(**fields: object) -> str | None:
    try:
        client.embeddings.create(**{"model": "tgi", "input": texts, **fields})
    except BadRequestError as error:
        return error.param
    return None


whole = client.embeddings.create(model="tgi", input=texts)
langchain = OpenAIEmbeddings(base_url=base, api_key=job["key"], model="tgi", check_embedding_ctx_length=False)
print(
    json.dumps(
        {
            "default": vectors(whole),
            "usage": [whole.usage.prompt_tokens, whole.usage.total_tokens],
            "floats": vectors(strict.embeddings.create(model="tgi", input=texts, encoding_format="float")),
            "ids": vectors(client.embeddings.create(model="tgi", input=job["ids"], user="me")),
            "short": vectors(client.embeddings.create(model="tgi", input=texts[0], dimensions=8)),
            "async": asyncio.run(asynchronous()),
            "langchain": langchain.embed_documents(texts),
            "langchain query": langchain.embed_query(texts[0]),
            "refused": [refused(dimensions=10_000), refused(input=[]), refused(input=texts[0] * 5000)],
        }
    )
)

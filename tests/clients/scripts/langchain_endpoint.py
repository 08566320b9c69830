"""langchain-huggingface's `HuggingFaceEndpoint` in a chain, on TGI's routes.

Its defaults are sent along (temperature 0.8, top_p and typical_p 0.95). Only top_k makes it greedy.
"""

import asyncio
import json
import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_huggingface import HuggingFaceEndpoint

job = json.loads(sys.argv[1])
llm = HuggingFaceEndpoint(endpoint_url=job["url"], max_new_tokens=40, top_k=1)
chain = PromptTemplate.from_template("{prompt}") | llm | StrOutputParser()
ask = {"prompt": job["prompt"]}


async def pieces() -> list[str]:
    return [piece async for piece in chain.astream(ask)]


print(
    json.dumps(
        {
            "text": chain.invoke(ask),
            "stream": "".join(chain.stream(ask)),
            "async_text": asyncio.run(chain.ainvoke(ask)),
            "async_stream": "".join(asyncio.run(pieces())),
            "stop": llm.invoke(job["prompt"], stop=[job["stop"]]),
            "stop_stream": "".join(llm.stream(job["prompt"], stop=[job["stop"]])),
        }
    )
)

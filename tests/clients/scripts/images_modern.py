"""A question about an image, asked by the `openai` SDK on two routes, huggingface_hub and LangChain."""

import json
import sys

from huggingface_hub import InferenceClient
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai import BadRequestError, OpenAI

job = json.loads(sys.argv[1])
URL, IMAGE, TEXT = job["url"], job["image"], job["text"]
client = OpenAI(base_url=URL + "/v1", api_key="unused", max_retries=0)
parts = [{"type": "image_url", "image_url": {"url": IMAGE, "detail": "high"}}, {"type": "text", "text": TEXT}]
messages = [{"role": "user", "content": parts}]
ask = {"messages": messages, "max_tokens": job["tokens"], "temperature": 0}

chat = client.chat.completions.create(model="tgi", **ask)
chunks = list(client.chat.completions.create(model="tgi", stream=True, **ask))
items = [{"type": "input_image", "image_url": IMAGE, "detail": "auto"}, {"type": "input_text", "text": TEXT}]
response = client.responses.create(
    model="tgi", input=[{"role": "user", "content": items}], max_output_tokens=job["tokens"], temperature=0
)
try:
    fetched = [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
    client.chat.completions.create(model="tgi", messages=[{"role": "user", "content": fetched}])
except BadRequestError as error:
    refused = error.param
hub = InferenceClient(URL, timeout=60).chat_completion(**ask)
model = ChatOpenAI(base_url=URL + "/v1", api_key="unused", model="tgi", temperature=0, max_tokens=job["tokens"])
newer = [{"type": "image", "base64": IMAGE.partition(",")[2], "mime_type": "image/png"}, {"type": "text", "text": TEXT}]
print(
    json.dumps(
        {
            "openai": chat.choices[0].message.content,
            "prompt_tokens": chat.usage.prompt_tokens,
            "openai_stream": "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices),
            "responses": response.output_text,
            "responses_tokens": response.usage.input_tokens,
            "hub": hub.choices[0].message.content,
            "langchain": model.invoke([HumanMessage(content=parts)]).content,
            "langchain_parts": model.invoke([HumanMessage(content=newer)]).content,
            "refused": refused,
        }
    )
)

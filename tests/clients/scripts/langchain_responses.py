"""langchain-openai over the Responses API: a message, its stream, a chain, a tool's call and a model of pydantic's."""

import json
import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

job = json.loads(sys.argv[1])
settings = {"base_url": job["url"] + "/v1", "api_key": "unused", "model": job["model"], "temperature": 0}
chat = ChatOpenAI(**settings, use_responses_api=True, max_tokens=40, max_retries=0)


class Add(BaseModel):
    """The sum of two numbers."""

    a: int = Field(ge=0, le=999)
    b: int = Field(ge=0, le=999)


message = chat.invoke(job["user"])
calling = chat.bind_tools([Add], tool_choice="Add").invoke("What is 2 + 3?")
[call] = calling.tool_calls
turns = [HumanMessage("What is 2 + 3?"), calling, ToolMessage("5", tool_call_id=call["id"])]
chained = ChatOpenAI(**settings, use_previous_response_id=True, max_tokens=8, max_retries=0)
structured = chat.with_structured_output(Add, method="json_schema").invoke("2 + 3")
print(
    json.dumps(
        {
            "text": message.text,
            "stream": "".join(chunk.text for chunk in chat.stream(job["user"])),
            "usage": message.usage_metadata["output_tokens"],
            "call": [call["name"], type(Add.model_validate(call["args"])).__name__],
            "after the result": bool(chat.bind_tools([Add]).invoke(turns).id),
            "chained": bool(chained.invoke([HumanMessage(job["user"]), message, HumanMessage("And then?")]).id),
            "structured": type(structured).__name__,
        }
    )
)

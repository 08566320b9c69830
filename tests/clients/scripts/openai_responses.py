"""The `openai` SDK's Responses API, validating strictly: answers, events, chains, pydantic models, tools and errors."""

import asyncio
import json
import sys

from openai import APIStatusError, AsyncOpenAI, OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field

job = json.loads(sys.argv[1])
settings = {
    "base_url": job["url"] + "/v1", "api_key": "unused", "max_retries": 0, "_strict_response_validation": True,
}  # fmt: skip
client = OpenAI(**settings)
MODEL = {"model": job["model"]}
ASK = {**MODEL, "input": job["user"], "max_output_tokens": 40, "temperature": 0}


class Person(BaseModel):
    name: str = Field(max_length=10)
    age: int = Field(ge=0, le=150)


class Add(BaseModel):
    """The sum of two numbers."""

    a: int = Field(ge=0, le=999)
    b: int = Field(ge=0, le=999)


chat_tool = pydantic_function_tool(Add, name="add")["function"]
TOOLS = [{"type": "function", **chat_tool}]
CALL = {**MODEL, "input": "What is 2 + 3?", "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}


def added_up(**fields: object) -> dict:
    """A stream's kinds of events, each once, its deltas joined, and the SDK's own sum."""
    kinds, text = [], ""
    with client.responses.stream(**fields) as stream:
        for event in stream:
            kinds += [event.type] if event.type not in kinds else []
            text += event.delta if event.type.endswith(".delta") else ""
        response = stream.get_final_response()
    return {"kinds": kinds, "deltas": text, "response": response}


def streamed() -> dict:
    seen = added_up(**ASK)
    return {"kinds": seen["kinds"], "deltas": seen["deltas"], "text": seen["response"].output_text}


def parsed() -> list[str]:
    ask = {**MODEL, "input": "Mary is 9.", "max_output_tokens": 200, "text_format": Person}
    whole, stream = client.responses.parse(**ask), added_up(**ask)["response"]
    return [type(each.output_parsed).__name__ for each in (whole, stream)]


def called() -> dict:
    """A call, whole and as a stream, and the answer to its result: by a chain, and by sending all items back."""
    first = client.responses.create(**CALL)
    [call] = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
    go_on = {**MODEL, "tools": TOOLS, "tool_choice": "none", "max_output_tokens": 8, "temperature": 0}
    chained = client.responses.create(**go_on, input=[result], previous_response_id=first.id)
    question = {"role": "user", "content": CALL["input"]}
    sent_back = client.responses.create(**go_on, input=[question, *first.output, result])
    stream = added_up(**CALL)
    [again] = stream["response"].output
    return {
        "names": [call.name, again.name],
        "arguments": [type(Add.model_validate_json(each.arguments)).__name__ for each in (call, again)],
        "deltas": stream["deltas"] == again.arguments,
        "kinds": stream["kinds"],
        "same": [chained.output_text, chained.usage.input_tokens]
        == [sent_back.output_text, sent_back.usage.input_tokens],
    }


def stored() -> dict:
    first = client.responses.create(**ASK)
    second = client.responses.create(**{**ASK, "input": "And then?"}, previous_response_id=first.id)
    items = client.responses.input_items.list(second.id, order="asc", limit=2)
    seen = {
        "shown": client.responses.retrieve(second.id) == second,
        "items": [item.content[0].text for item in items],  # which asks for the second page too
        "longer": second.usage.input_tokens > first.usage.total_tokens,
        "counted": client.responses.input_tokens.count(input=job["user"], **MODEL).input_tokens
        == first.usage.input_tokens,
        "cancel": failure(client.responses.cancel, first.id),
    }
    client.responses.delete(first.id)
    return {
        **seen,
        "deleted": failure(client.responses.retrieve, first.id),
        "lost": failure(client.responses.create, **ASK, previous_response_id=first.id),
    }


def failure(call: object, *given: object, **fields: object) -> list:
    try:
        call(*given, **fields)
    except APIStatusError as error:
        return [type(error).__name__, error.status_code, error.param, error.code]
    return []


def refused() -> dict:
    cases = {
        "tools": {"tools": [{"type": "web_search"}]},
        "background": {"background": True},
        "temperature": {"temperature": 3},
        "model": {"model": "another"},
        "long": {"input": "lo " * 20_000},
    }
    return {name: failure(client.responses.create, **{**ASK, **fields}) for name, fields in cases.items()}


async def several() -> list[str]:
    async with AsyncOpenAI(**settings) as many:
        whole = await asyncio.gather(*(many.responses.create(**ASK) for _ in range(2)))
        async with many.responses.stream(**ASK) as stream:
            streamed = "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])
            final = await stream.get_final_response()
        return [*(each.output_text for each in whole), streamed, final.output_text]


whole = client.responses.create(**ASK, include=["message.output_text.logprobs"], top_logprobs=2)
cut = client.responses.create(**{**ASK, "max_output_tokens": 3})
print(
    json.dumps(
        {
            "text": whole.output_text,
            "status": [whole.status, cut.status, cut.incomplete_details.reason],
            "usage": [whole.usage.output_tokens, cut.usage.output_tokens],
            "logprobs": len(whole.output[0].content[0].logprobs),
            "stream": streamed(),
            "parsed": parsed(),
            "called": called(),
            "stored": stored(),
            "refused": refused(),
            "async": asyncio.run(several()),
        }
    )
)

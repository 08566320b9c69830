"""The `openai` SDK's `parse` and `stream` with pydantic models and tools: each returns what pydantic has validated."""

import json
import sys
from enum import Enum
from typing import Literal

from openai import LengthFinishReasonError, OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field

job = json.loads(sys.argv[1])
client = OpenAI(base_url=job["url"] + "/v1", api_key="unused", max_retries=0)
ask = {"model": job["model"], "messages": [{"role": "user", "content": job["user"]}], "max_tokens": 300, "seed": 7}


class Unit(Enum):
    celsius = "celsius"
    fahrenheit = "fahrenheit"


class Place(BaseModel):
    """Where something is."""

    city: str = Field(max_length=10)
    country: str | None = Field(max_length=10)


class Report(BaseModel):
    place: Place
    other_places: list[Place] = Field(max_length=1)
    unit: Unit
    degrees: int = Field(ge=-90, le=60)
    sky: Literal["clear", "cloudy"]
    rain: bool


class GetWeather(BaseModel):
    """The weather at a place."""

    place: Place
    unit: Unit


class Add(BaseModel):
    """The sum of two numbers."""

    a: int = Field(ge=0, le=999)
    b: int = Field(ge=0, le=999)


TOOLS = [pydantic_function_tool(GetWeather), pydantic_function_tool(Add, name="add")]
NAMED = {"type": "function", "function": {"name": "add"}}


def described(choice: object) -> dict:
    calls = choice.message.tool_calls or []
    return {
        "finish_reason": choice.finish_reason,
        "content": choice.message.content,
        "refusal": choice.message.refusal,
        "parsed": type(choice.message.parsed).__name__,
        "calls": [[call.function.name, type(call.function.parsed_arguments).__name__] for call in calls],
        "ids": [call.id for call in calls],
        "arguments": [json.loads(call.function.arguments) for call in calls],
    }


def parsed(**fields: object) -> list[dict]:
    return [described(choice) for choice in client.chat.completions.parse(**ask, **fields).choices]


def chosen(**fields: object) -> list[list[str | None]]:
    """Of each choice its text and the names of its calls. `parse` would raise if the text were cut."""
    choices = client.chat.completions.create(**{**ask, "max_tokens": 40}, temperature=0, tools=TOOLS, **fields).choices
    return [[each.message.content, *(call.function.name for call in each.message.tool_calls or [])] for each in choices]


def streamed(**fields: object) -> dict:
    """What the events of a stream say, and the SDK's own sum of them."""
    kinds, fragments = [], {"content": "", "arguments": ""}
    with client.chat.completions.stream(**ask, **fields) as stream:
        for event in stream:
            kinds += [event.type] if event.type not in kinds else []
            if event.type == "content.delta":
                fragments["content"] += event.delta
            if event.type == "tool_calls.function.arguments.delta":
                fragments["arguments"] += event.arguments_delta
        (choice,) = stream.get_final_completion().choices
    return {**described(choice), "kinds": kinds, "fragments": fragments}


def cut() -> str | None:
    try:
        client.chat.completions.parse(**{**ask, "max_tokens": 3}, response_format=Report)
    except LengthFinishReasonError as error:
        return error.completion.choices[0].finish_reason
    return None


hot = {"temperature": 0.8}
print(
    json.dumps(
        {
            "report": parsed(response_format=Report, n=2, **hot),
            "report_stream": streamed(response_format=Report, **hot),
            "required": parsed(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, n=2, **hot),
            "named": parsed(tools=TOOLS, tool_choice=NAMED, n=2, **hot),
            "required_stream": streamed(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, **hot),
            "named_stream": streamed(tools=TOOLS, tool_choice=NAMED, **hot),
            "none": chosen(tool_choice="none"),
            "auto": chosen(),
            "tool_and_format": parsed(tools=TOOLS, tool_choice="none", response_format=Report, **hot),
            "cut": cut(),
        }
    )
)

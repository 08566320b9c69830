"""A `pydantic_ai` agent whose output is a pydantic model, as a forced tool and as a JSON schema."""

import json
import sys

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

job = json.loads(sys.argv[1])
model = OpenAIChatModel(job["model"], provider=OpenAIProvider(base_url=job["url"] + "/v1", api_key="unused"))


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def answer(output: object) -> dict:
    agent = Agent(model, output_type=output, retries=0)
    settings = {"max_tokens": 200, "temperature": 1.5, "seed": 5}
    return agent.run_sync("Mary is 30 years old.", model_settings=settings).output.model_dump()


print(json.dumps({"tool": answer(ToolOutput(Person)), "native": answer(NativeOutput(Person))}))

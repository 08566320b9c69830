"""`instructor` in its modes that force an answer: what it returns is validated by pydantic, without a second try."""

import json
import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

job = json.loads(sys.argv[1])
MODES = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON)


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=10)
    age: int = Field(ge=0, le=150)
    mood: Literal["glad", "sad"] | None


def answer(mode: instructor.Mode, **fields: object) -> dict:
    client = instructor.from_openai(OpenAI(base_url=job["url"] + "/v1", api_key="unused", max_retries=0), mode=mode)
    ask = {"model": job["model"], "messages": [{"role": "user", "content": "Mary is 30 years old."}], **fields}
    try:
        person, raw = client.chat.completions.create_with_completion(
            **ask, response_model=Person, max_retries=0, max_tokens=300, seed=3
        )
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    return {"person": person.model_dump(), "finish_reason": raw.choices[0].finish_reason}


def partial() -> dict:
    """The last of the partial objects of a stream."""
    client = instructor.from_openai(
        OpenAI(base_url=job["url"] + "/v1", api_key="unused", max_retries=0), mode=instructor.Mode.JSON_SCHEMA
    )
    messages = [{"role": "user", "content": "Mary is 30 years old."}]
    people = client.chat.completions.create_partial(
        model=job["model"],
        messages=messages,
        response_model=Person,
        max_retries=0,
        max_tokens=300,
        temperature=1.5,
        seed=3,
    )
    seen = [person.model_dump() for person in people]
    return {"count": len(seen), "last": Person(**seen[-1]).model_dump()}


answers = {mode.name: answer(mode, temperature=1.5) for mode in MODES}
print(json.dumps({**answers, "partial": partial()}))

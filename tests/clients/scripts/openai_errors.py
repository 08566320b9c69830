"""Which exception the `openai` SDK raises for each way a request can fail, and what it can tell about it."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable

import openai

job = json.loads(sys.argv[1])
client = openai.OpenAI(base_url=job["url"] + "/v1", api_key=job["key"], max_retries=0)
stranger = client.with_options(api_key="wrong")
model = client.models.list().data[0].id
MESSAGES = [{"role": "user", "content": "quick brown"}]


def chat(client: openai.OpenAI = client, **fields: object) -> object:
    return client.chat.completions.create(**{"model": model, "messages": MESSAGES, "max_tokens": 4, **fields})


def caught(call: Callable[[], object]) -> dict:
    try:
        call()
    except openai.APIError as error:
        seen = {"class": type(error).__name__, "code": error.code, "param": error.param, "type": error.type}
        if isinstance(error, openai.APIStatusError):
            seen |= {"status": error.status_code, "retry_after": error.response.headers.get("retry-after")}
        return seen
    return {"class": None}


def while_another_streams() -> dict:
    with chat(max_tokens=1500, extra_body={"ignore_eos": True}, stream=True) as stream:
        next(iter(stream))
        os.kill(job["engine"], signal.SIGSTOP)  # so that it still runs when the other is refused
        try:
            return caught(chat)
        finally:
            os.kill(job["engine"], signal.SIGCONT)


def while_the_engine_dies() -> dict:
    while caught(chat)["class"] == "RateLimitError":  # until it is noticed that the other stream's client has left
        time.sleep(0.05)
    with chat(max_tokens=1500, extra_body={"ignore_eos": True}, stream=True) as stream:
        next(iter(stream))
        os.kill(job["engine"], signal.SIGKILL)
        return caught(lambda: list(stream))


print(
    json.dumps(
        {
            "wrong_key": caught(lambda: chat(stranger)),
            "wrong_value": caught(lambda: chat(temperature=-1)),
            "too_long": caught(lambda: chat(max_tokens=1_000_000)),
            "wrong_value_in_a_stream": caught(lambda: chat(temperature=-1, stream=True)),
            "unknown_model": caught(lambda: chat(model="nobody/nothing")),
            "overload": while_another_streams(),
            "engine_death": while_the_engine_dies(),
        }
    )
)

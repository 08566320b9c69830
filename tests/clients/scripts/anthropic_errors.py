"""Which exception the `anthropic` SDK raises for each way a request can fail, and what it can tell about it."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable

import anthropic

job = json.loads(sys.argv[1])
client = anthropic.Anthropic(base_url=job["url"], api_key=job["key"], max_retries=0, _strict_response_validation=True)
stranger = client.with_options(api_key="wrong")
bearer = anthropic.Anthropic(base_url=job["url"], auth_token=job["key"], api_key=None, max_retries=0)
# The API has no way to go on behind an end. The tiny model ends no greedy answer to this; one in three that are sampled
# is over before its engine could be stopped.
TALK = [{"role": "user", "content": "dog"}]
LONG = {"max_tokens": 1500, "stream": True, "messages": TALK, "extra_body": {"temperature": 0}}


def ask(client: anthropic.Anthropic = client, **fields: object) -> object:
    asked = {"model": "tgi", "max_tokens": 4, "messages": [{"role": "user", "content": "quick brown"}], **fields}
    return client.messages.create(**asked)


def caught(call: Callable[[], object]) -> dict:
    try:
        call()
    except anthropic.APIError as error:
        body = error.body if isinstance(error.body, dict) else {}
        seen = {"class": type(error).__name__, **body.get("error", {}), "id": bool(body.get("request_id"))}
        if isinstance(error, anthropic.APIStatusError):
            seen |= {"status": error.status_code, "retry_after": error.response.headers.get("retry-after")}
        return seen
    return {"class": None}


def while_another_streams() -> dict:
    with ask(**LONG) as stream:
        next(iter(stream))
        os.kill(job["engine"], signal.SIGSTOP)  # so that it still runs when the other is refused
        try:
            return caught(ask)
        finally:
            os.kill(job["engine"], signal.SIGCONT)


def while_the_engine_dies() -> dict:
    while caught(ask)["class"]:  # until it is noticed that the other stream's client has left, and the engine is back
        time.sleep(0.05)
    with ask(**LONG) as stream:
        next(iter(stream))
        os.kill(job["engine"], signal.SIGKILL)
        return caught(lambda: list(stream))


print(
    json.dumps(
        {
            "bearer": caught(lambda: ask(bearer)),
            "wrong_key": caught(lambda: ask(stranger)),
            "wrong_value": caught(lambda: ask(stop_sequences=[""])),
            "wrong_value_in_a_stream": caught(lambda: ask(stop_sequences=[""], stream=True)),
            "too_long": caught(lambda: ask(max_tokens=20_000)),
            "unknown_model": caught(lambda: ask(model="claude-nobody")),
            "overload": while_another_streams(),
            "engine_death": while_the_engine_dies(),
        }
    )
)

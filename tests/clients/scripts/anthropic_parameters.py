"""The names of all parameters that the `anthropic` SDK sends in the bodies of messages and of counts."""

import inspect
import json

import anthropic

OF_THE_CALL = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}

client = anthropic.Anthropic(api_key="unused")


def names(method: str) -> list[str]:
    found = {
        name
        for messages in (client.messages, client.beta.messages)
        for name in inspect.signature(getattr(messages, method)).parameters
    }
    return sorted(found - OF_THE_CALL)


print(json.dumps({"create": names("create"), "count_tokens": names("count_tokens")}))

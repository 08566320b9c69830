"""A beam search by the `openai` SDK, which sends the fields that it does not know as `extra_body`."""

import json
import sys

from openai import BadRequestError, OpenAI

job = json.loads(sys.argv[1])
client = OpenAI(base_url=job["url"] + "/v1", api_key="unused", max_retries=0, _strict_response_validation=True)
ask = {"model": "tgi", "max_tokens": job["max_tokens"], "temperature": 0}
search = {"use_beam_search": True, "length_penalty": 1.0, "early_stopping": "never"}
text = {**ask, "prompt": job["prompt"], "extra_body": search}
chat = {**ask, "messages": [{"role": "user", "content": job["prompt"]}], "extra_body": search}


def refused(**fields: object) -> str | None:
    try:
        client.completions.create(**{**text, **fields})
    except BadRequestError as error:
        return error.param
    return None


completion = client.completions.create(**text, n=2, best_of=4, logprobs=1)
messages = client.chat.completions.create(**chat, n=3, logprobs=True)
print(
    json.dumps(
        {
            "texts": [choice.text for choice in completion.choices],
            "ends": [[choice.index, choice.finish_reason] for choice in completion.choices],
            "logprobs": [choice.logprobs.token_logprobs for choice in completion.choices],
            "usage": [completion.usage.completion_tokens, messages.usage.completion_tokens],
            "messages": [choice.message.content for choice in messages.choices],
            "refused": [refused(stream=True), refused(temperature=0.5), refused(stop="a")],
        }
    )
)

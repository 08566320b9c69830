"""TGI's own client with a `Grammar`: whole and streamed."""

import json
import sys

from text_generation import Client
from text_generation.errors import ValidationError
from text_generation.types import Grammar, GrammarType

job = json.loads(sys.argv[1])
client = Client(job["url"], timeout=60)
hot = {"max_new_tokens": 200, "do_sample": True, "temperature": 1.5, "seed": 5}
JSON = Grammar(type=GrammarType.Json, value=job["schema"])
REGEX = Grammar(type=GrammarType.Regex, value=job["regex"])


def refusal(**fields: object) -> str | None:
    try:
        client.generate(job["prompt"], **{**hot, **fields})
    except ValidationError as error:
        return str(error)
    return None


whole = {name: client.generate(job["prompt"], **hot, grammar=each) for name, each in (("json", JSON), ("regex", REGEX))}
stream = list(client.generate_stream(job["prompt"], **hot, grammar=JSON))
no_properties = Grammar(type=GrammarType.Json, value={"type": "string"})
print(
    json.dumps(
        {
            **{name: answer.generated_text for name, answer in whole.items()},
            "finish_reason": {name: answer.details.finish_reason for name, answer in whole.items()},
            "stream": stream[-1].generated_text,
            "refusal": refusal(grammar=no_properties),
        }
    )
)

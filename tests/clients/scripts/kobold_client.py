"""A client of KoboldCpp: texts whole and streamed, tokens, what it reads of the server, and a generation it aborts."""

import json
import sys
import threading
import time
from typing import Any

from koboldapi import KoboldAPI, KoboldAPIError

job = json.loads(sys.argv[1])
texts, greedy = job["texts"], {"max_length": job["new"], "temperature": 0}
client = KoboldAPI(job["url"], job["key"])
SECONDS = 60


def refused(work: Any) -> str:
    try:
        work()
    except KoboldAPIError as error:
        return str(error)
    return ""


def aborted() -> dict[str, Any]:
    """A long generation, seen and ended by its name while it runs; another name does not end it."""
    found: dict[str, Any] = {}
    long = {"max_length": job["long"], "ban_eos_token": True}
    thread = threading.Thread(target=lambda: found.update(text=client.generate(texts[0], **long)))
    thread.start()
    deadline = time.monotonic() + SECONDS
    while not (seen := client.check_generation()) and time.monotonic() < deadline:
        time.sleep(0.01)
    other = KoboldAPI(job["url"], job["key"])
    other.genkey = "another"
    found |= {"seen": seen, "another's check": other.check_generation(), "another's abort": other.abort_generation()}
    found["still runs"] = thread.is_alive()
    found["abort"] = client.abort_generation()
    thread.join(SECONDS)
    found["again"] = client.abort_generation()
    return found


counted = client.count_tokens(texts[0])
print(
    json.dumps(
        {
            "whole": [client.generate(text, **greedy) for text in texts],
            "streamed": [client.generate_sync(text, **greedy) for text in texts],
            "counted": counted,
            "tokenized": client.tokenize(texts[0]),
            "detokenized": client.detokenize(counted["tokens"]),
            "version": client.get_version(),
            "model": client.get_model(),
            "context": client.get_max_context_length(),
            "aborted": aborted(),
            "performance": client.get_performance_stats(),
            "logprobs": refused(client.get_last_logprobs),
            "wrong grammar": refused(lambda: client.generate(texts[0], grammar="root ::= [")),
            "no key": refused(KoboldAPI(job["url"]).get_model),
        }
    )
)

"""What `helm test` runs: asks the server at $URL for one token, with the first key of the file $KEYS, if it is set."""

import json
import os
import urllib.request

headers = {"Content-Type": "application/json"}
if "KEYS" in os.environ:
    with open(os.environ["KEYS"]) as keys:
        headers["Authorization"] = f"Bearer {keys.read().split()[0]}"
body = {"inputs": "Hello", "parameters": {"max_new_tokens": 1, "details": True}}
request = urllib.request.Request(os.environ["URL"] + "/generate", json.dumps(body).encode(), headers)
with urllib.request.urlopen(request, timeout=120) as response:
    answer = json.load(response)
print(answer)
if answer["details"]["generated_tokens"] != 1:
    raise SystemExit("it was asked for one token")

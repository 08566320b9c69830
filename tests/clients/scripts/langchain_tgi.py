"""langchain-community's `HuggingFaceTextGenInference`, with TGI's client inside. Only top_k makes it greedy."""

import json
import sys

from langchain_community.llms import HuggingFaceTextGenInference

job = json.loads(sys.argv[1])
llm = HuggingFaceTextGenInference(inference_server_url=job["url"], max_new_tokens=40, top_k=1)
print(json.dumps({"text": llm.invoke(job["prompt"]), "stream": "".join(llm.stream(job["prompt"]))}))

"""The client of the post on BLOOM behind Triton, call for call: the tokenizer's model, then the network's, greedily."""

import json
import sys

import numpy as np
import tritonclient.grpc
from tritonclient.grpc import InferInput, InferRequestedOutput

job = json.loads(sys.argv[1])
client = tritonclient.grpc.InferenceServerClient(job["url"])
text = InferInput("TEXT", [1], "BYTES")
text.set_data_from_numpy(np.array([job["text"]], dtype=object))
tokens = client.infer(
    model_name="bloom_3b_tokenizer",
    model_version="1",
    inputs=[text],
    outputs=[InferRequestedOutput("input_ids"), InferRequestedOutput("attention_mask")],
    client_timeout=None,
)


def logits_of(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    inputs = []
    for name, values in (("input_ids", ids), ("attention_mask", mask)):
        inputs.append(InferInput(name, values.shape, "INT64"))
        inputs[-1].set_data_from_numpy(values)
    answer = client.infer(
        model_name=job["model"],
        model_version="1",
        inputs=inputs,
        outputs=[InferRequestedOutput("logits")],
        client_timeout=None,
    )
    return answer.as_numpy("logits")


ids, mask = tokens.as_numpy("input_ids"), tokens.as_numpy("attention_mask")
first = logits_of(ids, mask)
while ids.shape[1] < job["length"]:
    chosen = logits_of(ids, mask)[:, -1].argmax(-1, keepdims=True)
    ids = np.concatenate([ids, chosen.astype(np.int64)], 1)
    mask = np.ones_like(ids)
print(json.dumps({"logits": first.tolist(), "ids": ids.tolist()}))

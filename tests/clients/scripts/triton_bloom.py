"""BLOOM behind Triton as a post of 2022 serves it: a tokenizer, then the logits of a network, in a loop of its own."""

import json
import sys

import numpy as np
import tritonclient.grpc as grpcclient

job = json.loads(sys.argv[1])
client = grpcclient.InferenceServerClient(url=job["url"], verbose=False)


def tokenize(text: str) -> tuple[np.ndarray, np.ndarray]:
    inputs = [grpcclient.InferInput("TEXT", [1], "BYTES")]
    inputs[0].set_data_from_numpy(np.array([text], dtype=object))
    outputs = [grpcclient.InferRequestedOutput("input_ids"), grpcclient.InferRequestedOutput("attention_mask")]
    results = client.infer(
        model_name=job["model"] + "_tokenizer",
        model_version="1",
        inputs=inputs,
        outputs=outputs,
        client_timeout=None,
    )
    return results.as_numpy("input_ids"), results.as_numpy("attention_mask")


def logits(name: str, input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
    inputs = [
        grpcclient.InferInput("input_ids", list(input_ids.shape), "INT64"),
        grpcclient.InferInput("attention_mask", list(attention_mask.shape), "INT64"),
    ]
    inputs[0].set_data_from_numpy(input_ids)
    inputs[1].set_data_from_numpy(attention_mask)
    results = client.infer(
        model_name=name,
        model_version="1",
        inputs=inputs,
        outputs=[grpcclient.InferRequestedOutput("logits")],
        client_timeout=None,
    )
    return results.as_numpy("logits")


def generate(text: str) -> list[int]:
    """The ids of the text and of what follows it greedily."""
    input_ids, attention_mask = tokenize(text)
    while input_ids.shape[1] < job["max_length"]:
        following = logits(job["model"], input_ids, attention_mask)[:, -1, :].argmax(-1)
        input_ids = np.concatenate([input_ids, following[:, None].astype(np.int64)], axis=1)
        attention_mask = np.concatenate([attention_mask, np.ones((1, 1), np.int64)], axis=1)
        if following[0] == job["eos"]:
            break
    return input_ids[0].tolist()


ids, mask = tokenize(job["texts"][0])
print(
    json.dumps(
        {
            "ready": [client.is_server_live(), client.is_server_ready(), client.is_model_ready(job["model"], "1")],
            "ids": ids.tolist(),
            "mask": mask.tolist(),
            "logits": logits(job["model"], ids, mask).tolist(),
            "by its own name": logits(job["model"] + "_logits", ids, mask).tolist(),
            "generated": [generate(text) for text in job["texts"]],
        }
    )
)

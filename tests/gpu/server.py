"""The whole server on this device: does it answer over HTTP what transformers generates, and how soon?

A small model in f32, written here with its tokenizer; the gateway's packages are needed besides.
"""

import importlib.util
import json
import tempfile
import time
from pathlib import Path

from tests.gpu.record import Record
from tests.gpu.scale import Scale

NEEDED = ("fastapi", "uvicorn", "sse_starlette", "llguidance", "grpc", "httpx", "torch", "transformers")
FIELDS = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
SIZES = ("--dtype=float32", "--max-batch-size=8", "--max-batch-prefill-tokens=128", "--max-total-tokens=512")
EXACT = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}  # a GPU's default rounds operands of f32 products to tf32
TEXT, NEW = "where does the river end? in the sea, as rivers do.", 200


def run(record: Record, scale: Scale) -> None:
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        record.add("skipped", what="server", why=f"{', '.join(missing)} cannot be imported")
        return
    with tempfile.TemporaryDirectory() as directory, record.part("server"):
        measure(record, Path(directory))


def measure(record: Record, directory: Path) -> None:
    """A row of "correctness", and one of "servers"."""
    from tests import tiny
    from tests.servers import serving

    fields = {**FIELDS, "vocab_size": tiny.VOCAB, "bos_token_id": tiny.BOS, "eos_token_id": tiny.EOS}
    model = tiny.write_model(directory / "model", fields)
    with serving(directory, f"--model-id={model}", *SIZES, env=EXACT) as server:
        ready = server.wait_ready()
        streamed(server.url)
        ids, first, seconds = streamed(server.url)
    wrong = sum(ours != theirs for ours, theirs in zip(ids, greedy(model, len(ids)), strict=True))
    check = f"server, {len(ids)} tokens of /generate_stream that differ from transformers'"
    record.add("correctness", check=check, dtype="float32", error=wrong, limit=0, ok=len(ids) > 1 and not wrong)
    record.add("servers", ready_seconds=ready, first_seconds=first, tokens=len(ids), seconds=seconds)


def streamed(url: str) -> tuple[list[int], float, float]:
    """The ids of a greedy answer, the seconds until the first and until the last."""
    import httpx

    asked = {"inputs": TEXT, "parameters": {"max_new_tokens": NEW}}
    ids: list[int] = []
    begun, first = time.perf_counter(), 0.0
    with httpx.stream("POST", f"{url}/generate_stream", json=asked, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data:"):
                ids.append(json.loads(line[5:])["token"]["id"])
                first = first or time.perf_counter() - begun
    return ids, first, time.perf_counter() - begun


def greedy(model: Path, count: int) -> list[int]:
    """What transformers generates in f32 on a CPU."""
    import torch
    import transformers

    prompt = transformers.AutoTokenizer.from_pretrained(model)(TEXT, return_tensors="pt").input_ids
    reference = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    made = reference.generate(prompt, max_new_tokens=count, do_sample=False)
    ids: list[int] = made[0, prompt.shape[1] :].tolist()
    return ids

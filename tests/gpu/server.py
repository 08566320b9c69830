"""The whole server on this device: does it answer over HTTP what transformers generates, and how soon?

A small model in f32, written here with its tokenizer; the gateway's packages are needed besides.
"""

import asyncio
import importlib.util
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
    from tests.server.streams import stream
    from tests.servers import serving

    fields = {**FIELDS, "vocab_size": tiny.VOCAB, "bos_token_id": tiny.BOS, "eos_token_id": tiny.EOS}
    model = tiny.write_model(directory / "model", fields)
    with serving(directory, f"--model-id={model}", *SIZES, env=EXACT) as server:
        ready = server.wait_ready()
        asyncio.run(stream(server.url, TEXT, NEW))
        begun, moments = time.monotonic(), list[float]()
        ids = asyncio.run(stream(server.url, TEXT, NEW, moments=moments)).ids
    wrong = sum(ours != theirs for ours, theirs in zip(ids, greedy(model, len(ids)), strict=True))
    check = f"server, {len(ids)} tokens of /generate_stream that differ from transformers'"
    record.add("correctness", check=check, dtype="float32", error=wrong, limit=0, ok=len(ids) > 1 and not wrong)
    record.add(
        "servers", ready_seconds=ready, first_seconds=moments[0] - begun, tokens=len(ids), seconds=moments[-1] - begun
    )


def greedy(model: Path, count: int) -> list[int]:
    """What transformers generates in f32 on a CPU."""
    from tests import tiny

    prompt = tiny.tokenizer()(TEXT, return_tensors="pt").input_ids
    made = tiny.load_reference(model).generate(prompt, max_new_tokens=count, do_sample=False)
    ids: list[int] = made[0, prompt.shape[1] :].tolist()
    return ids

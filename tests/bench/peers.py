"""Other engines that compute what ours does: the same weights and prompts, greedily, on the same processors."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from convert.source import OpenModel
from tests.bench.transformers_twin import twin
from tests.clients.environments import interpreter

SCRIPT = Path(__file__).parent / "llama_cpp_engine.py"


class Peer(Protocol):
    name: str

    def generate(self, prompts: np.ndarray, new_tokens: int) -> None:
        """`new_tokens` for each of `prompts`, i64 [B, n], all at once; none ends early, and no prefix is known."""


class Transformers:
    """Its static-batch `generate`, in f32."""

    name = "transformers"

    def __init__(self, model: OpenModel) -> None:
        torch.set_num_threads(os.cpu_count() or 1)
        self.model = twin(model.source)

    def generate(self, prompts: np.ndarray, new_tokens: int) -> None:
        ids = torch.from_numpy(prompts)
        with torch.inference_mode():
            self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
            )


class LlamaCpp:
    """Its server's slots on the GGUF file, in a process of its own, without HTTP and text."""

    name = "llama.cpp"

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.processor: str = self._answer()

    def generate(self, prompts: np.ndarray, new_tokens: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompts": prompts.tolist(), "new_tokens": new_tokens}) + "\n")
        self.process.stdin.flush()
        made = self._answer()
        assert made == [new_tokens] * len(prompts), made

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


NAMES = (Transformers.name, LlamaCpp.name)


@contextmanager
def peer(name: str, model: OpenModel, batch: int, tokens: int) -> Iterator[Peer]:
    """That of one of `NAMES`, for batches of up to `batch` requests with `tokens` each."""
    if name == Transformers.name:
        yield Transformers(model)
        return
    job = {"model": str(model.checkpoint), "threads": os.cpu_count(), "slots": batch, "tokens": batch * tokens}
    command = [str(interpreter("llama_cpp")), str(SCRIPT), json.dumps(job)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        llama_cpp = LlamaCpp(process)
        print(f"llama.cpp: {llama_cpp.processor}\n")
        yield llama_cpp
        process.kill()

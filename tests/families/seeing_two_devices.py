"""Engines that see, over two devices. `python -m tests.families.seeing_two_devices DIRECTORY NAMES…` prints a JSON
object: for each recipe of `tests/tiny_vision.py`, how far its log-probabilities are from transformers', whether the
greedy ids are those of these, and how many compiles came late.

It is a program of its own, because the number of a CPU's devices is fixed when JAX starts.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.jaxengine.engines import alone
from tests.jaxengine.seeing import SeenPrompt, load_seeing, logprob_rows
from tests.tiny_vision import write_vision
from tests.vision_references import Reference, noise


def outcome(directory: Path, name: str) -> dict[str, Any]:
    sizes = {"max_batch_size": 1, "max_batch_prefill_tokens": 32, "tensor_parallel": 2}
    engine = load_seeing(write_vision(directory, name), **sizes)
    vision, tokens = engine.runner.shapes.spec.vision, engine.description.vocab_size
    assert vision is not None
    pictures = [noise(64, 40), noise(40, 64, 1)]
    prompt = SeenPrompt.of(Reference(directory / name, name), vision, "describe {} and this: {} here", pictures)
    answer = alone(engine, prompt.ask(1, max_tokens=5, prompt_logprobs=True, logprobs=tokens))
    expected = prompt.logprobs(tokens, answer.ids)[:-1]
    found = logprob_rows([*answer.prompt[1:], *answer.tokens])
    greedy = expected[len(prompt.ids) - 1 :].argmax(-1).tolist()
    late = engine.stats().compiles_after_warmup
    engine.close()
    return {"difference": float(np.abs(found - expected).max()), "greedy": answer.ids == greedy, "late": late}


if __name__ == "__main__":
    made, *names = sys.argv[1:]
    print(json.dumps({name: outcome(Path(made), name) for name in names}))

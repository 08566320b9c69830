"""What a small engine answers on this platform: greedy tokens, and the log-probabilities of the whole vocabulary at
every position of prompt and answer. Run on a CPU and on a GPU, the two are compared by `correctness`.

`python -m tests.gpu.answers FILE BACKEND DTYPE [NAME=VALUE…]` writes them to FILE (npz). Prompts of several lengths run
together in chunks, so that mixed and decode steps, the scorer and the sampler all take part.
"""

import argparse
from pathlib import Path

import jax
import numpy as np

from jaxengine.model.spec import ModelSpec
from jaxengine.params import SamplingParams
from jaxengine.sequence import Request, Token
from tests.gpu.engines import Client, small_engine

SPEC = ModelSpec(
    vocab_size=512,
    hidden_size=256,
    num_layers=2,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    ffn_size=512,
    max_positions=512,
)
PROMPTS = (3, 40, 150)
NEW = 16


def answers(backend: str, dtype: str, **stored: str) -> dict[str, np.ndarray]:
    """`ids_n` i32 [NEW] and `logprobs_n` f32 [prompt - 1 + NEW, vocab] of each prompt n."""
    top = SPEC.vocab_size
    engine = small_engine(
        SPEC,
        attention=backend,
        dtype=dtype,
        max_batch_size=4,
        max_batch_prefill_tokens=64,
        max_top_logprobs=top,
        **stored,
    )
    params = SamplingParams(temperature=0, seed=0, max_tokens=NEW, ignore_eos=True, logprobs=top, prompt_logprobs=True)
    for number, length in enumerate(PROMPTS):
        prompt = np.random.default_rng(number).integers(0, SPEC.vocab_size, length).tolist()
        engine.submit(Request(number, prompt, params))
    told: dict[int, list[Token]] = {number: [] for number in range(len(PROMPTS))}
    client = Client(engine)
    while not engine.idle:
        for event in client.step():
            told[event.request_id] += [*event.prompt[1:], *event.tokens]
    return {
        key: value
        for number, tokens in told.items()
        for key, value in {
            f"ids_{number}": np.array([token.id for token in tokens[-NEW:]], np.int32),
            f"logprobs_{number}": np.stack([whole_vocabulary(token) for token in tokens]),
        }.items()
    }


def whole_vocabulary(token: Token) -> np.ndarray:
    """f32 [vocab], in the order of ids."""
    row = np.full(SPEC.vocab_size, np.nan, np.float32)
    ids, logprobs = zip(*token.top, strict=True)
    row[list(ids)] = logprobs
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("backend")
    parser.add_argument("dtype")
    parser.add_argument("stored", nargs="*", help="further options of the engine, as name=value")
    given = parser.parse_args()
    # A GPU's default f32 product rounds operands to tf32, which is not what a comparison with a CPU asks about.
    jax.config.update("jax_default_matmul_precision", "highest")
    stored = dict(pair.split("=") for pair in given.stored)
    np.savez(given.file, **answers(given.backend, given.dtype, **stored))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()

"""The default model over its golden answers, without an engine: what storing fewer bits costs a trained model."""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from convert.source import open_model
from jaxengine.architecture.parameters import ParameterSource
from jaxengine.device import CPU
from jaxengine.model.decoder import Decoder, Layers
from jaxengine.model.embedding import Head
from jaxengine.ops import Ops, StepBatch
from jaxengine.sharding import make_mesh
from jaxengine.weights.loading import load_parameters
from jaxengine.weights.quantization import FLOATS
from tests.processes import ROOT

GOLDENS: list[dict[str, Any]] = json.loads((ROOT / "tests/goldens/smollm2_golden.json").read_text())["runs"]
PAGE, WIDTH = 16, 8


def golden_logprobs(
    quantize: str | None = None,
    cache: str = "float32",
    source: ParameterSource | None = None,
    dtype: str = "float32",
) -> np.ndarray:
    """Log-probabilities [answered tokens, V] that lead to each golden token, all prompts in one step."""
    return _golden_step(quantize, cache, source, dtype)[0]


def golden_caches() -> Layers:
    """What the same step in f32 leaves in the caches."""
    return _golden_step(None, "float32", None, "float32")[1]


@functools.cache
def _golden_step(
    quantize: str | None, cache: str, source: ParameterSource | None, dtype: str
) -> tuple[np.ndarray, Layers]:
    source, mesh = source or open_model(None).source, make_mesh()
    parameters: dict[str, Any] = load_parameters(source, mesh, dtype, CPU, lambda *_: None, quantize or FLOATS)
    decoder = Decoder(source.spec, parameters, CPU, Ops("reference", mesh))
    head = Head(source.spec, parameters.get)
    shape = (source.spec.num_layers, 1 + len(GOLDENS) * WIDTH, PAGE, source.spec.num_kv_heads, source.spec.head_dim)
    pages = jnp.zeros(shape, cache)
    ids, batch, asked = _step()
    hidden, layers = decoder(ids, (pages, pages), [batch])
    return np.asarray(jax.nn.log_softmax(head(hidden[asked]))), layers


def _step() -> tuple[jax.Array, StepBatch, np.ndarray]:
    """Every prompt with its answer as a row: ids [T], and which of them predict an answered token."""
    texts = [golden["prompt_ids"] + golden["greedy_ids"] for golden in GOLDENS]
    tokens = -(-sum(map(len, texts)) // 32) * 32
    position = np.concatenate([np.arange(len(text)) for text in texts])
    row = np.repeat(np.arange(len(texts)), list(map(len, texts)))
    asked = position >= np.array([len(golden["prompt_ids"]) for golden in GOLDENS])[row]
    tables = 1 + np.arange(len(texts) * WIDTH, dtype=np.int32).reshape(-1, WIDTH)

    def padded(values: np.ndarray, fill: int = 0) -> jax.Array:
        return jnp.asarray(np.append(values, [fill] * (tokens - len(position))), jnp.int32)

    batch = StepBatch(
        position=padded(position),
        rope_length=padded(position + 1),
        row=padded(row, len(texts)),
        page=padded(tables[row, position // PAGE]),
        offset=padded(position % PAGE),
        tables=jnp.asarray(tables),
        tokens=jnp.int32(len(position)),
        ragged=True,
    )
    return padded(np.concatenate(texts)), batch, np.flatnonzero(asked) - 1


def divergence(ours: np.ndarray) -> float:
    """Mean over the golden answers of KL(f32 model ‖ ours), in nats a token."""
    exact = golden_logprobs()
    return float((np.exp(exact) * (exact - ours)).sum(-1).mean())


def agreement(ours: np.ndarray) -> float:
    """The share of golden tokens that are the likeliest to us too."""
    ids = [token for golden in GOLDENS for token in golden["greedy_ids"]]
    return float((ours.argmax(-1) == np.array(ids)).mean())

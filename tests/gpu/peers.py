"""transformers on the same device, with the same shape and the same loads: its continuous batching, and its `generate`
compiled over a static cache. Random weights, since speed does not depend on them.

What the peer needs once is not counted: weights, compilation, its own warm-up. Neither is it for us.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
import transformers

from tests.gpu.record import Record
from tests.gpu.scale import Load, Scale

CONTINUOUS = "transformers generate_batch"
STATIC = "transformers generate, static cache"


def run(record: Record, scale: Scale) -> None:
    model = random_model(scale)
    continuous(model, scale.loads[0])  # loads the libraries' kernels, which no later call pays for
    for engine, measure in ((CONTINUOUS, continuous), (STATIC, static)):
        for load in scale.loads:
            with record.part(f"{engine}: {load.name}"):
                seconds = measure(model, load)
                tokens = load.requests * load.new
                attention = model.config._attn_implementation
                record.add("loads", load=load.name, engine=engine, seconds=seconds, tokens=tokens, attention=attention)


def random_model(scale: Scale) -> transformers.PreTrainedModel:
    """A Llama of `scale`'s shape on the GPU if there is one, drawn there by transformers' own initialisation."""
    spec = scale.spec
    config = transformers.LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.ffn_size,
        max_position_embeddings=spec.max_positions,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, scale.dtype))
    return model.eval()


def prompts(model: transformers.PreTrainedModel, load: Load) -> list[list[int]]:
    shape = (load.requests, load.prompt)
    ids: list[list[int]] = np.random.default_rng(0).integers(1, model.config.vocab_size, shape).tolist()
    return ids


def continuous(model: transformers.PreTrainedModel, load: Load) -> float:
    """From the first request's admission to the last one's end."""
    config = transformers.GenerationConfig(max_new_tokens=load.new, do_sample=False, eos_token_id=-1, pad_token_id=0)
    outputs = model.generate_batch(prompts(model, load), generation_config=config, progress_bar=False).values()
    if [len(output.generated_tokens) for output in outputs] != [load.new] * load.requests:
        raise RuntimeError(f"generate_batch finished {len(outputs)} of {load.requests} requests, or cut some short")
    return max(output.lifespan[1] for output in outputs) - min(output.lifespan[0] for output in outputs)


def static(model: transformers.PreTrainedModel, load: Load) -> float:
    """The second of two identical calls: the first compiles."""
    ids = torch.tensor(prompts(model, load), device=model.device)

    def generate(new: int) -> torch.Tensor:
        return model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            cache_implementation="static",
        )

    generate(load.new)
    return timed(lambda: generate(load.new))


def timed(function: Callable[[], torch.Tensor]) -> float:
    start = time.perf_counter()
    function().cpu()
    return time.perf_counter() - start

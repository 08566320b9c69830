"""Learnt drafters of tiny models, in the files that their trainers write: random heads that guess differently."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

GAIN = 2.0  # so that what a head adds decides its guess, not the hidden state that all of them read


def write_medusa(
    directory: Path,
    base: str,
    hidden: int,
    vocab: int,
    heads: int = 3,
    layers: int = 1,
    own_heads: bool = True,
    bias: bool = True,
    seed: int = 0,
) -> Path:
    """`directory`, with heads as Medusa's own code and TGI name them."""
    config = {"medusa_num_heads": heads, "medusa_num_layers": layers, "base_model_name_or_path": base}
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for head in range(heads):
        for layer in range(layers):
            tensors[f"{head}.{layer}.linear.weight"] = _matrix(generator, hidden, hidden)
            if bias:
                tensors[f"{head}.{layer}.linear.bias"] = _vector(generator, hidden)
        if own_heads:
            tensors[f"{head}.{layers}.weight"] = _matrix(generator, vocab, hidden)
    return _write(directory, config, tensors, "medusa_lm_head.safetensors")


def write_mlp_speculator(
    directory: Path,
    base: str,
    hidden: int,
    vocab: int,
    inner: int,
    guesses: int = 3,
    tied: bool = False,
    scale_input: bool = False,
    seed: int = 0,
) -> Path:
    """`directory`, with a speculator as IBM's code saves it. A tied one has what is shared once."""
    config = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "base_model_name_or_path": base,
        "emb_dim": hidden,
        "inner_dim": inner,
        "n_predict": guesses,
        "vocab_size": vocab,
        "tie_weights": tied,
        "scale_input": scale_input,
    }
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for i in range(guesses):
        if i < (2 if tied else guesses):
            tensors[f"speculator.proj.{i}.weight"] = _matrix(generator, inner, inner if i else hidden)
        if i == 0 or not tied:
            tensors[f"speculator.emb.{i}.weight"] = _matrix(generator, vocab, inner)
            tensors[f"speculator.head.{i}.weight"] = _matrix(generator, vocab, inner)
            tensors[f"speculator.ln.{i}.weight"] = 1 + _vector(generator, inner)
            tensors[f"speculator.ln.{i}.bias"] = _vector(generator, inner)
    return _write(directory, config, tensors, "model.safetensors")


def _matrix(generator: torch.Generator, outputs: int, inputs: int) -> torch.Tensor:
    return torch.randn((outputs, inputs), generator=generator) * GAIN / math.sqrt(inputs)


def _vector(generator: torch.Generator, size: int) -> torch.Tensor:
    return 0.2 * torch.randn(size, generator=generator)


def _write(directory: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], file: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / file)
    return directory

"""The shapes of real models, for what needs no weights."""

import dataclasses

from jaxengine.model.spec import LayerKind, ModelSpec, Norm, Rope, StateSpace

LLAMA_8B = ModelSpec(  # Llama-3.1-8B
    vocab_size=128256,
    hidden_size=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    ffn_size=14336,
    max_positions=131072,
    kinds=(LayerKind(Rope("llama3", 500000.0, 8.0, original_positions=8192)),),
)

MISTRAL_7B = ModelSpec(  # Mistral-7B-v0.1
    vocab_size=32000,
    hidden_size=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    ffn_size=14336,
    max_positions=32768,
    kinds=(LayerKind(window=4096),),
)

FALCON_MAMBA_7B = ModelSpec(
    vocab_size=65024,
    hidden_size=4096,
    num_layers=64,
    num_heads=0,
    num_kv_heads=0,
    head_dim=0,
    ffn_size=0,
    max_positions=2**20,
    norm=Norm(eps=1e-5),
    kinds=(LayerKind(rope=None),),
    state_space=StateSpace(channels=8192, size=16, rank=256, eps=1e-6),
)

LLAMA_70B = dataclasses.replace(  # Llama-3.1-70B
    LLAMA_8B, hidden_size=8192, num_layers=80, num_heads=64, ffn_size=28672
)

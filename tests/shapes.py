"""The shapes of real models, for what needs no weights."""

from jaxengine.model.spec import LayerKind, ModelSpec, Rope

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

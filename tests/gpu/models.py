"""One small model of each arrangement that runs other kernels: what a GPU makes of them is compared with a CPU."""

from dataclasses import replace

from jaxengine.architecture.model import (
    Attention,
    Embedding,
    Encoder,
    Experts,
    Head,
    LayerKind,
    ModelSpec,
    Norm,
    RelativePositions,
    StateSpace,
)

LLAMA = ModelSpec(
    vocab_size=512,
    hidden_size=256,
    num_layers=2,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    ffn_size=512,
    max_positions=512,
)
MODELS = {
    "llama": LLAMA,
    "windows": replace(  # as Gemma 2: every other layer sees 48 tokens
        LLAMA,
        norm=Norm("rms_plus_one", 1e-6),
        block="sandwich",
        kinds=(LayerKind(window=48), LayerKind()),
        attention=Attention(softcap=50.0),
        activation="gelu_tanh",
        embedding=Embedding(scale=16.0),
        head=Head(tied=True, softcap=30.0),
    ),
    "experts": replace(LLAMA, kinds=(LayerKind(experts=True),), experts=Experts(8, 2, 128)),
    "states": replace(  # as Falcon-Mamba
        LLAMA,
        num_heads=0,
        num_kv_heads=0,
        head_dim=0,
        ffn_size=0,
        kinds=(LayerKind(rope=None),),
        state_space=StateSpace(channels=512, size=16, rank=16, eps=1e-6),
    ),
    "encoder": replace(  # as FLAN-T5, but for scores that are scaled: with random weights they would all be certain
        LLAMA,
        num_kv_heads=8,
        norm=Norm(eps=1e-6),
        kinds=(LayerKind(rope=None),),
        attention=Attention(relative=RelativePositions(32, 128)),
        activation="gelu_tanh",
        encoder=Encoder(2, start_token=0),
    ),
}

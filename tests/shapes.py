"""The shapes of real models, for what needs no weights."""

import dataclasses

from jaxengine.architecture.latent import Latent
from jaxengine.architecture.model import (
    Attention,
    ClampedGate,
    Cross,
    Embedding,
    Encoder,
    Experts,
    Head,
    LayerKind,
    LinearAttention,
    Mamba2,
    ModelSpec,
    Norm,
    QKNorm,
    RelativePositions,
    Rope,
    StateSpace,
    Vision,
)
from jaxengine.architecture.vision import Connector, Tower
from jaxengine.device import DeviceTraits

H200 = DeviceTraits(platform="gpu", kind="NVIDIA H200", capability=(9, 0))

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

CLIP_L_336 = Tower(  # up to the layer before the last
    hidden_size=1024,
    num_layers=23,
    num_heads=16,
    head_dim=64,
    ffn_size=4096,
    norm=Norm("layer", bias=True),
    activation="quick_gelu",
    patch_bias=False,
    class_token=True,
    grid=(24, 24),
    pre_norm=True,
    post_norm=False,
)
LLAVA_NEXT_7B = dataclasses.replace(  # llava-v1.6-mistral-7b
    MISTRAL_7B,
    vocab_size=32064,
    kinds=(LayerKind(Rope(theta=1e6)),),
    vision=Vision(
        tower=CLIP_L_336,
        connector=Connector(inner=4096),
        token=32000,
        patch=14,
        patch_values=588,
        features=(23,),
        skipped=1,
        rows="unpadded",
        pinpoints=((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)),
    ),
)

# How Gemma 3 and Qwen2.5-VL-7B see, but for the ids of their images.
SIGLIP_SO400M = Tower(1152, 27, 16, 72, 4304, Norm("layer", 1e-6, bias=True), grid=(64, 64))
GEMMA3_EYES = Vision(SIGLIP_SO400M, Connector(4, pooled=True, norm=Norm("rms_plus_one", 1e-6), bias=False), 0, 14, 588)
QWEN2_5_TOWER = Tower(
    *(1280, 32, 16, 80, 3420, Norm("rms", 1e-6), "silu"),
    gated=True,
    patch_bias=False,
    positions="none",
    rope=Rope(axes=(0, 20, 20), layout="own"),
    post_norm=False,
    window=8,
    whole_layers=(7, 15, 23, 31),
)
QWEN2_5_EYES = Vision(QWEN2_5_TOWER, Connector(2, norm=Norm("rms", 1e-6), inner=5120), 0, 14, 1176, squares=True)

# Llama 3.2 Vision 11B: of 40 layers, eight attend to pictures.
MLLAMA_TOWER = Tower(
    *(1280, 32, 16, 80, 5120, Norm("layer", bias=True), "gelu"),
    qkv_bias=False,
    out_bias=False,
    patch_bias=False,
    class_token=True,
    grid=(40, 40),
    pre_norm=True,
    tiles=4,
    global_layers=8,
)
MLLAMA_EYES = Vision(MLLAMA_TOWER, Connector(), 128256, 14, 588, features=(3, 7, 15, 23, 30), cross=True)
PICTURES = LayerKind(None, cross=Cross(), gates="number")
LLAMA3_2_11B = dataclasses.replace(
    LLAMA_8B,
    vocab_size=128264,
    num_layers=40,
    kinds=tuple(PICTURES if layer % 5 == 3 else LLAMA_8B.kinds[0] for layer in range(40)),
    head=Head(tokens=128256),
    vision=MLLAMA_EYES,
)

FLAN_T5_XXL = ModelSpec(
    vocab_size=32128,
    hidden_size=4096,
    num_layers=24,
    num_heads=64,
    num_kv_heads=64,
    head_dim=64,
    ffn_size=10240,
    max_positions=512,
    norm=Norm(eps=1e-6),
    kinds=(LayerKind(rope=None, scale=1.0),),
    attention=Attention(relative=RelativePositions(32, 128)),
    activation="gelu_tanh",
    encoder=Encoder(24, start_token=0),
)

FLAN_T5_XL = dataclasses.replace(FLAN_T5_XXL, hidden_size=2048, num_heads=32, num_kv_heads=32, ffn_size=5120)

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

QWEN3_5_27B = ModelSpec(
    vocab_size=248320,
    hidden_size=5120,
    num_layers=64,
    num_heads=24,
    num_kv_heads=4,
    head_dim=256,
    ffn_size=17408,
    max_positions=262144,
    norm=Norm("rms_plus_one", 1e-6),
    kinds=(*(LayerKind(None, mixer="recurrence"),) * 3, LayerKind(Rope(theta=1e7, dim=64))),
    attention=Attention(qk_norm=QKNorm("rms_plus_one"), output_gate=True),
    linear_attention=LinearAttention(heads=48, key_heads=16, key_dim=128, value_dim=128),
)

GRANITE_4_SMALL = ModelSpec(  # granite-4.0-h-small
    vocab_size=100352,
    hidden_size=4096,
    num_layers=40,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    ffn_size=768,
    max_positions=131072,
    kinds=(
        *(LayerKind(None, experts=True, mixer="recurrence"),) * 5,
        LayerKind(None, scale=1 / 128, experts=True),
        *(LayerKind(None, experts=True, mixer="recurrence"),) * 4,
    ),
    mamba2=Mamba2(heads=128, head_dim=64, groups=1, size=128),
    experts=Experts(72, 10, 768, renormalise=True, shared_ffn_size=1536, shared_gate=False),
    embedding=Embedding(scale=12.0),
    residual_scale=0.22,
    head=Head(tied=True, scale=1 / 16),
)

LLAMA_70B = dataclasses.replace(  # Llama-3.1-70B
    LLAMA_8B, hidden_size=8192, num_layers=80, num_heads=64, ffn_size=28672
)

MIXTRAL = dataclasses.replace(  # Llama-3.1-8B with eight such MLPs in each layer, about as Mixtral-8x7B
    LLAMA_8B, experts=Experts(8, 2, 14336), kinds=(LayerKind(experts=True),)
)

GEMMA2_9B = ModelSpec(
    vocab_size=256000,
    hidden_size=3584,
    num_layers=42,
    num_heads=16,
    num_kv_heads=8,
    head_dim=256,
    ffn_size=14336,
    max_positions=8192,
    norm=Norm("rms_plus_one", 1e-6),
    block="sandwich",
    kinds=(LayerKind(window=4096, scale=256**-0.5), LayerKind(scale=256**-0.5)),
    attention=Attention(softcap=50.0),
    activation="gelu_tanh",
    embedding=Embedding(scale=3584**0.5),
    head=Head(tied=True, softcap=30.0),
)

PHI2 = ModelSpec(  # head_dim 80, of which 32 turn
    vocab_size=51200,
    hidden_size=2560,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=80,
    ffn_size=10240,
    max_positions=2048,
    norm=Norm("layer", 1e-5, bias=True),
    block="parallel",
    kinds=(LayerKind(Rope(dim=32)),),
    activation="gelu_tanh",
    gated=False,
    head=Head(bias=True),
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
)

PHI3_MINI = ModelSpec(  # head_dim 96
    vocab_size=32064,
    hidden_size=3072,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=96,
    ffn_size=8192,
    max_positions=4096,
    kinds=(LayerKind(window=2047),),
)

GPT2 = ModelSpec(
    vocab_size=50257,
    hidden_size=768,
    num_layers=12,
    num_heads=12,
    num_kv_heads=12,
    head_dim=64,
    ffn_size=3072,
    max_positions=1024,
    norm=Norm("layer", 1e-5, bias=True),
    kinds=(LayerKind(rope=None),),
    activation="gelu_tanh",
    gated=False,
    embedding=Embedding(positions=True),
    head=Head(tied=True),
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
)

BLOOM_3B = dataclasses.replace(
    GPT2,
    vocab_size=250880,
    hidden_size=2560,
    num_layers=30,
    num_heads=32,
    num_kv_heads=32,
    head_dim=80,
    ffn_size=10240,
    max_positions=2048,
    attention=Attention(alibi=tuple(2 ** (-(i + 1) / 4) for i in range(32))),
    embedding=Embedding(norm=True),
)

OPT_6_7B = dataclasses.replace(
    GPT2,
    vocab_size=50272,
    hidden_size=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    ffn_size=16384,
    max_positions=2048,
    activation="relu",
)

PYTHIA_6_9B = dataclasses.replace(  # GPT-NeoX; a quarter of each head turns
    OPT_6_7B,
    vocab_size=50432,
    block="parallel_norms",
    kinds=(LayerKind(Rope(dim=32)),),
    activation="gelu",
    embedding=Embedding(),
    head=Head(),
)

GLM_4_5_AIR = ModelSpec(
    vocab_size=151552,
    hidden_size=4096,
    num_layers=46,
    num_heads=96,
    num_kv_heads=8,
    head_dim=128,
    ffn_size=10944,
    max_positions=131072,
    kinds=(LayerKind(Rope(theta=1e6, dim=64)), *(LayerKind(Rope(theta=1e6, dim=64), experts=True),) * 45),
    experts=Experts(128, 8, 1408, "sigmoid", True, 1408, shared_gate=False, choice_bias=True),
    qkv_bias=True,
)

DEEPSEEK_V3_ROPE = Rope("yarn", factor=40.0, original_positions=4096, mscale=1.0, mscale_all_dim=1.0, dim=64)
DEEPSEEK_V3_KIND = LayerKind(DEEPSEEK_V3_ROPE, scale=0.1353)
DEEPSEEK_V3 = ModelSpec(
    vocab_size=129280,
    hidden_size=7168,
    num_layers=61,
    num_heads=128,
    num_kv_heads=1,
    head_dim=192,
    ffn_size=18432,
    max_positions=163840,
    kinds=(*(DEEPSEEK_V3_KIND,) * 3, *(dataclasses.replace(DEEPSEEK_V3_KIND, experts=True),) * 58),
    attention=Attention(latent=Latent(512, 128, 64, 128, query_rank=1536)),
    experts=Experts(256, 8, 2048, "sigmoid", True, 2048, False, scale=2.5, choice_bias=True, groups=8, used_groups=4),
)

GLM_4_7_FLASH_KIND = LayerKind(Rope(theta=1e6, dim=64))
GLM_4_7_FLASH = ModelSpec(
    vocab_size=154880,
    hidden_size=2048,
    num_layers=47,
    num_heads=20,
    num_kv_heads=1,
    head_dim=256,
    ffn_size=10240,
    max_positions=202752,
    kinds=(GLM_4_7_FLASH_KIND, *(dataclasses.replace(GLM_4_7_FLASH_KIND, experts=True),) * 46),
    attention=Attention(latent=Latent(512, 192, 64, 256, query_rank=768)),
    experts=Experts(64, 4, 1536, "sigmoid", True, 1536, False, scale=1.8, choice_bias=True),
)

GPT_OSS_ROPE = Rope("yarn", 150000.0, 32.0, 4096, truncate=False)
GPT_OSS_20B = ModelSpec(
    vocab_size=201088,
    hidden_size=2880,
    num_layers=24,
    num_heads=64,
    num_kv_heads=8,
    head_dim=64,
    ffn_size=2880,
    max_positions=131072,
    kinds=(LayerKind(GPT_OSS_ROPE, window=128, experts=True), LayerKind(GPT_OSS_ROPE, experts=True)) * 12,
    attention=Attention(sinks=True),
    clamped_gate=ClampedGate(),
    experts=Experts(32, 4, 2880, renormalise=True, bias=True),
    qkv_bias=True,
    out_bias=True,
)

GEMMA3_270M = ModelSpec(
    vocab_size=262144,
    hidden_size=640,
    num_layers=18,
    num_heads=4,
    num_kv_heads=1,
    head_dim=256,
    ffn_size=2048,
    max_positions=32768,
    norm=Norm("rms_plus_one", 1e-6),
    block="sandwich",
    kinds=(*[LayerKind(Rope(theta=1e4), window=512)] * 5, LayerKind(Rope(theta=1e6))),
    attention=Attention(qk_norm=QKNorm("rms_plus_one")),
    activation="gelu_tanh",
    embedding=Embedding(scale=640**0.5),
    head=Head(tied=True),
)

"""gpt-oss: experts with biases and a clamped gate, a learned sink for each head, windows on every other layer.

The experts of the released checkpoints are in MXFP4 (`convert/quantized/mxfp4.py`).
"""

from dataclasses import replace

from convert.config.config import Config
from convert.families.family import Family, layer_kinds, window, with_experts
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Attention, ClampedGate, Experts, ModelSpec

EXPERTS = LAYER + "mlp.experts."
GPT_OSS_TENSORS = {
    **TENSORS,
    "layers.{i}.sinks": (LAYER + "self_attn.sinks",),
    "layers.{i}.router": (LAYER + "mlp.router.weight",),
    **{
        f"layers.{{i}}.experts_{ours}{bias}": (f"{EXPERTS}{ours}_proj{bias}",)
        for ours in ("gate_up", "down")
        for bias in ("", "_bias")
    },
}
YARN = {  # of configurations that say nothing of their positions
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}


def _gpt_oss(config: Config) -> ModelSpec:
    if config.get("rope_scaling") is None and config.get("rope_parameters") is None:
        config = Config({**config.values, "rope_parameters": YARN}, config.where)
    biased = config.flag("attention_bias", True)
    spec = llama_spec(
        config,
        theta=150000.0,
        head_dim=64,
        eps=1e-5,
        attention=Attention(sinks=True),
        clamped_gate=ClampedGate(config.number("swiglu_limit", 7.0), config.number("swiglu_alpha", 1.702)),
        qkv_bias=biased,
        out_bias=biased,
    )
    full = spec.kinds[0]
    narrow = replace(full, window=window(config, spec.max_positions, 128))
    kinds = layer_kinds(config, spec.num_layers, full, narrow, lambda layer: layer % 2 == 0)
    experts = Experts(
        count=config.integer(config.spelled("num_local_experts", "num_experts"), 128),
        used=config.integer(config.spelled("num_experts_per_tok", "experts_per_token"), 4),
        ffn_size=spec.ffn_size,
        renormalise=True,  # a softmax over the chosen, which is the same
        bias=True,
    )
    return with_experts(replace(spec, kinds=kinds), experts)


GPT_OSS = Family(_gpt_oss, GPT_OSS_TENSORS, Layout(joint_experts="alternating"), ignore=BUFFERS)

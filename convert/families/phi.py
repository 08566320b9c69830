"""Phi 1, 1.5 and 2: parallel branches, partly rotated heads. Phi 3 to 4: a Llama with fused projections, longrope."""

from convert.config.config import Config
from convert.families.family import Family, activation
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec, with_window
from jaxengine.architecture.model import Attention, ModelSpec, Norm, QKNorm

PHI_TENSORS = {
    **TENSORS,
    "layers.{i}.qk_norm": tuple(f"{LAYER}self_attn.{x}_layernorm.weight" for x in "qk"),
    "layers.{i}.out": (LAYER + "self_attn.dense.weight",),
    "layers.{i}.gate_up": (LAYER + "mlp.fc1.weight",),
    "layers.{i}.down": (LAYER + "mlp.fc2.weight",),
    "final_norm": ("model.final_layernorm.weight",),
}
PHI3_TENSORS = {
    **TENSORS,
    "layers.{i}.qkv": (LAYER + "self_attn.qkv_proj.weight",),
    "layers.{i}.gate_up": (LAYER + "mlp.gate_up_proj.weight",),
}


def _phi(config: Config) -> ModelSpec:
    return llama_spec(
        config,
        part=0.5,
        block="parallel",
        norm=Norm("layer", config.number("layer_norm_eps", 1e-5)),
        attention=Attention(qk_norm=QKNorm("layer") if config.flag("qk_layernorm", False) else None),
        activation=activation(config, "gelu_new"),
        gated=False,
    )


def _phi3(config: Config) -> ModelSpec:
    return with_window(llama_spec(config, part=1.0, eps=1e-5), config)


PHI = Family(_phi, PHI_TENSORS, ignore=BUFFERS)
PHI3 = Family(_phi3, PHI3_TENSORS, ignore=BUFFERS)

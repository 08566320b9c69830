"""Mixtral: Mistral with eight MLPs, two for each token; and PhiMoE, which has the same tensor names."""

from convert.config.config import Config
from convert.families.family import Family, with_experts
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec, with_window
from jaxengine.architecture.model import Experts, ModelSpec, Norm

MOE = LAYER + "block_sparse_moe."
EXPERTS = {
    **TENSORS,
    "layers.{i}.router": (MOE + "gate.weight",),
    "layers.{i}.experts_gate_up": tuple(f"{MOE}experts.{{e}}.{x}.weight" for x in ("w1", "w3")),
    "layers.{i}.experts_down": (MOE + "experts.{e}.w2.weight",),
}


def _mixtral(config: Config) -> ModelSpec:
    spec = with_window(llama_spec(config, theta=1e6, eps=1e-5), config)
    experts = Experts(
        count=config.integer("num_local_experts", 8),
        used=config.integer("num_experts_per_tok", 2),
        ffn_size=spec.ffn_size,
        renormalise=True,
    )
    return with_experts(spec, experts)


def _phimoe(config: Config) -> ModelSpec:
    norm = Norm("layer", config.number("rms_norm_eps", 1e-5))
    spec = with_window(llama_spec(config, theta=1e6, norm=norm), config)
    experts = Experts(
        count=config.integer("num_local_experts", 16),
        used=config.integer("num_experts_per_tok", 2),
        ffn_size=spec.ffn_size,
        routing="sparse_mixer",
        jitter=config.number("router_jitter_noise", 0.01),
    )
    return with_experts(spec, experts)


MIXTRAL = Family(_mixtral, EXPERTS, ignore=BUFFERS)
PHIMOE = Family(_phimoe, EXPERTS, ignore=BUFFERS)

"""Granite: a Llama whose embeddings, scores, branches and logits are each multiplied by a number; with experts too.

Granite 4 has layers of Mamba 2 among those of attention, which then mostly know no positions.
"""

from dataclasses import replace

from convert.config.config import Config
from convert.families.family import Family, refuse, with_experts
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec
from convert.families.mamba2 import attending, mamba2, mamba2_tensors, with_mamba2
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Embedding, Experts, ModelSpec

EXPERTS = {
    **TENSORS,
    "layers.{i}.router": (LAYER + "block_sparse_moe.router.layer.weight",),
    "layers.{i}.experts_gate_up": (LAYER + "block_sparse_moe.input_linear.weight",),
    "layers.{i}.experts_down": (LAYER + "block_sparse_moe.output_linear.weight",),
    "layers.{i}.shared_gate_up": (LAYER + "shared_mlp.input_linear.weight",),
    "layers.{i}.shared_down": (LAYER + "shared_mlp.output_linear.weight",),
}
HYBRID = {
    **EXPERTS,
    **mamba2_tensors(LAYER + "mamba."),
    "layers.{i}.gate_up": EXPERTS["layers.{i}.shared_gate_up"],
    "layers.{i}.down": EXPERTS["layers.{i}.shared_down"],
}


def _granite(config: Config) -> ModelSpec:
    spec = llama_spec(config)
    divisor = config.number("logits_scaling", 1.0)
    if divisor == 0:
        raise config.error("logits_scaling", "must not be 0")
    return replace(
        spec,
        embedding=Embedding(scale=config.number("embedding_multiplier", 1.0)),
        kinds=(replace(spec.kinds[0], scale=config.number("attention_multiplier", 1.0)),),
        residual_scale=config.number("residual_multiplier", 1.0),
        head=replace(spec.head, scale=1 / divisor),
    )


def _granite_moe(config: Config) -> ModelSpec:
    spec = _granite(config)
    experts = Experts(
        count=config.integer("num_local_experts", 8),
        used=config.integer("num_experts_per_tok", 2),
        ffn_size=spec.ffn_size,
        renormalise=True,  # a softmax over the chosen, which is the same
        shared_ffn_size=config.integer("shared_intermediate_size", 0, least=0),
        shared_gate=False,
    )
    return with_experts(spec, experts)


def _granite_hybrid(config: Config) -> ModelSpec:
    refuse(config, hidden_act="silu", normalization_function="rmsnorm")
    config = Config({"shared_intermediate_size": 1024, **config.values}, config.where)
    if config.integer("num_local_experts", 8, least=0):
        spec = _granite_moe(config)
    else:
        spec = replace(_granite(config), ffn_size=config.integer("shared_intermediate_size"))
    positions = config.get("position_embedding_type")
    if positions not in (None, "nope", "rope"):
        raise config.error("position_embedding_type", "must be rope or nope")
    if positions != "rope":
        spec = replace(spec, kinds=(replace(spec.kinds[0], rope=None),))
    return with_mamba2(spec, attending(config, spec.num_layers), mamba2(config, spec.hidden_size))


GRANITE = Family(_granite, TENSORS, ignore=BUFFERS)
GRANITE_MOE = Family(_granite_moe, EXPERTS, Layout(joint_experts="straight"), ignore=BUFFERS)
GRANITE_HYBRID = Family(_granite_hybrid, HYBRID, Layout(joint_experts="straight"), ignore=BUFFERS)

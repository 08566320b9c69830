"""Granite: a Llama whose embeddings, scores, branches and logits are each multiplied by a number; with experts too."""

from dataclasses import replace

from convert.config.config import Config
from convert.families.family import Family, with_experts
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec
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


GRANITE = Family(_granite, TENSORS, ignore=BUFFERS)
GRANITE_MOE = Family(_granite_moe, EXPERTS, Layout(joint_experts="straight"), ignore=BUFFERS)

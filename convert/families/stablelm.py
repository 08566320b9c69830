"""StableLM 2, 1.6B to 12B: LayerNorm, a quarter of each head rotated; the 12B has parallel branches, a norm a head."""

from convert.config.config import Config
from convert.families.family import Family
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Attention, ModelSpec, Norm, QKNorm

HEAD_NORMS = tuple(f"{LAYER}self_attn.{x}_layernorm.norms.{{h}}.weight" for x in "qk")


def _stablelm(config: Config) -> ModelSpec:
    return llama_spec(
        config,
        part=0.25,
        norm=Norm("layer", config.number("layer_norm_eps", 1e-5)),
        block="parallel" if config.flag("use_parallel_residual", False) else "sequential",
        attention=Attention(qk_norm=QKNorm("layer") if config.flag("qk_layernorm", False) else None),
        qkv_bias=config.flag("use_qkv_bias", False),
    )


STABLELM = Family(_stablelm, {**TENSORS, "layers.{i}.qk_norm": HEAD_NORMS}, Layout(norm_per_head=True), ignore=BUFFERS)

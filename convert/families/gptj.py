"""GPT-J and CodeGen: parallel branches behind one norm, the first `rotary_dim` of a head rotated in adjacent pairs."""

from convert.config.config import Config
from convert.families.family import Family
from convert.families.gpt2 import TENSORS, gpt_spec
from convert.mapping.recipes import CODEGEN_BLOCKS, Layout
from jaxengine.architecture.model import Embedding, Head, LayerKind, ModelSpec, Rope

LAYER = "transformer.h.{i}."
GPTJ_TENSORS = {
    **TENSORS,
    "layers.{i}.qkv": tuple(f"{LAYER}attn.{x}_proj.weight" for x in "qkv"),
    "layers.{i}.out": (LAYER + "attn.out_proj.weight",),
    "layers.{i}.gate_up": (LAYER + "mlp.fc_in.weight",),
    "layers.{i}.down": (LAYER + "mlp.fc_out.weight",),
}
CODEGEN_TENSORS = {**GPTJ_TENSORS, "layers.{i}.qkv": (LAYER + "attn.qkv_proj.weight",)}
BUFFERS = (r"\.attn\.(masked_bias|bias|causal_mask)$",)


def _spec(config: Config) -> ModelSpec:
    dim = 0 if config.values.get("rotary_dim", 64) is None else config.integer("rotary_dim", 64)
    return gpt_spec(
        config,
        positions=2048,
        block="parallel",
        kinds=(LayerKind(Rope(dim=dim)),),
        embedding=Embedding(),
        head=Head(tied=config.flag("tie_word_embeddings", False)),
    )


def _codegen(config: Config) -> ModelSpec:
    spec = _spec(config)
    if spec.num_heads % CODEGEN_BLOCKS:
        key = config.spelled("n_head", "num_attention_heads")
        raise config.error(key, f"must be a multiple of {CODEGEN_BLOCKS}")
    return spec


GPTJ = Family(_spec, GPTJ_TENSORS, Layout(interleaved=True), ignore=BUFFERS)
CODEGEN = Family(_codegen, CODEGEN_TENSORS, Layout("codegen", interleaved=True), ignore=BUFFERS)

"""GPT-NeoX, and with it Pythia, Dolly and RedPajama: two norms in parallel, a quarter of each head rotated."""

from convert.config.config import Config
from convert.config.rope import longest, rope
from convert.families.family import Family, activation, sizes
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Head, LayerKind, ModelSpec, Norm

LAYER = "gpt_neox.layers.{i}."
TENSORS = {
    "embedding": ("gpt_neox.embed_in.weight",),
    "layers.{i}.attention_norm": (LAYER + "input_layernorm.weight",),
    "layers.{i}.qkv": (LAYER + "attention.query_key_value.weight",),
    "layers.{i}.out": (LAYER + "attention.dense.weight",),
    "layers.{i}.mlp_norm": (LAYER + "post_attention_layernorm.weight",),
    "layers.{i}.gate_up": (LAYER + "mlp.dense_h_to_4h.weight",),
    "layers.{i}.down": (LAYER + "mlp.dense_4h_to_h.weight",),
    "final_norm": ("gpt_neox.final_layer_norm.weight",),
    "head": ("embed_out.weight",),
}


def _spec(config: Config) -> ModelSpec:
    fields = sizes(config)
    rotary = rope(config, fields["head_dim"], part=0.25)
    bias = config.flag("attention_bias", False)
    return ModelSpec(
        **{**fields, "max_positions": longest(config, rotary, fields["max_positions"])},
        norm=Norm("layer", config.number("layer_norm_eps", 1e-5)),
        block="parallel_norms" if config.flag("use_parallel_residual", True) else "sequential",
        kinds=(LayerKind(rotary),),
        activation=activation(config, "gelu"),
        gated=False,
        head=Head(tied=config.flag("tie_word_embeddings", False)),
        qkv_bias=bias,
        out_bias=bias,
    )


GPT_NEOX = Family(
    _spec,
    TENSORS,
    Layout(qkv="grouped"),
    renames=((r"^lm_head\.", "embed_out."),),
    ignore=(r"\.attention\.(masked_)?bias$", r"rotary_emb\.inv_freq$"),
)

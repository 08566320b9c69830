"""BART and mBART: an encoder and a decoder, both with learned positions whose first two rows are never used.

BART is post-norm; mBART is pre-norm and has a norm behind each stack. Settings of a search in
their generation configurations (beams, forced first and last tokens, lengths) are not read: a request has its own.
"""

from convert.config.config import Config
from convert.families.family import Family, activation, refuse
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Embedding, Encoder, Head, LayerKind, ModelSpec, Norm

ENCODER, DECODER = "model.encoder.", "model.decoder."


def _stack(ours: str, theirs: str) -> dict[str, tuple[str, ...]]:
    layer = theirs + "layers.{i}."
    return {
        f"{ours}positions": (theirs + "embed_positions.weight",),
        f"{ours}embedding_norm": (theirs + "layernorm_embedding.weight",),
        f"{ours}layers.{{i}}.attention_norm": (layer + "self_attn_layer_norm.weight",),
        f"{ours}layers.{{i}}.qkv": tuple(f"{layer}self_attn.{x}_proj.weight" for x in "qkv"),
        f"{ours}layers.{{i}}.out": (layer + "self_attn.out_proj.weight",),
        f"{ours}layers.{{i}}.mlp_norm": (layer + "final_layer_norm.weight",),
        f"{ours}layers.{{i}}.gate_up": (layer + "fc1.weight",),
        f"{ours}layers.{{i}}.down": (layer + "fc2.weight",),
        f"{ours}final_norm": (theirs + "layer_norm.weight",),
    }


CROSS = DECODER + "layers.{i}.encoder_attn"
TENSORS = {
    "embedding": ("model.shared.weight",),
    **_stack("encoder.", ENCODER),
    **_stack("", DECODER),
    "layers.{i}.cross_norm": (CROSS + "_layer_norm.weight",),
    "layers.{i}.cross_q": (CROSS + ".q_proj.weight",),
    "layers.{i}.cross_kv": tuple(f"{CROSS}.{x}_proj.weight" for x in "kv"),
    "layers.{i}.cross_out": (CROSS + ".out_proj.weight",),
    "head": ("lm_head.weight",),
    "head_bias": ("final_logits_bias",),
}
LAYOUT = Layout(first_position=2, bias_as_row=True)
COPIES = r"^model\.(en|de)coder\.embed_tokens\.weight$"  # of the embedding


def _spec(config: Config) -> ModelSpec:
    hidden, heads, ffn = (config.integer(key) for key in ("d_model", "decoder_attention_heads", "decoder_ffn_dim"))
    refuse(config, encoder_attention_heads=heads, encoder_ffn_dim=ffn)
    if hidden % heads:
        raise config.error("d_model", f"must be a multiple of decoder_attention_heads {heads}")
    multilingual = config.text("model_type") == "mbart"
    start = config.integer("decoder_start_token_id", None if multilingual else 2, least=0)
    return ModelSpec(
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=config.integer("decoder_layers"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        ffn_size=ffn,
        max_positions=config.integer("max_position_embeddings"),
        norm=Norm("layer", 1e-5),
        block="sequential" if multilingual else "post_norm",
        kinds=(LayerKind(rope=None),),
        activation=activation(config, "gelu"),
        gated=False,
        embedding=Embedding(
            scale=hidden**0.5 if config.flag("scale_embedding", False) else 1.0, positions=True, norm=True
        ),
        head=Head(tied=config.flag("tie_word_embeddings", True)),
        final_norm=multilingual,
        encoder=Encoder(config.integer("encoder_layers"), start),
    )


BART = Family(_spec, TENSORS, LAYOUT, copies=COPIES)

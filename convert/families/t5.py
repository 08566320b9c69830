"""T5, T5 1.1, FLAN-T5, mT5 and umT5: an encoder and a decoder, positions only as buckets of distances.

Scores are not scaled. T5 1.1 and its successors have a gate in the MLP and a head of their own. Where T5's
configuration ties the head, hidden states are divided by the square root of their width, even if the checkpoint has a
head after all. transformers 5 writes this as `scale_decoder_outputs`, and calls every head tied. Each layer of umT5 has
buckets of its own.
"""

from convert.config.config import Config
from convert.families.family import ACTIVATIONS, Family, sizes
from jaxengine.architecture.model import (
    Activation,
    Attention,
    Encoder,
    Head,
    LayerKind,
    ModelSpec,
    Norm,
    RelativePositions,
)

POSITIONS = 512  # trained length; buckets take any distance, so a longer --max-total-tokens is allowed
ENCODER, DECODER = "encoder.block.{i}.layer.", "decoder.block.{i}.layer."
TENSORS = {
    "embedding": ("shared.weight",),
    "relative": ("decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",),
    "layers.{i}.relative": (DECODER + "0.SelfAttention.relative_attention_bias.weight",),
    "encoder.relative": ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",),
    "encoder.layers.{i}.relative": (ENCODER + "0.SelfAttention.relative_attention_bias.weight",),
    "encoder.layers.{i}.attention_norm": (ENCODER + "0.layer_norm.weight",),
    "encoder.layers.{i}.qkv": tuple(f"{ENCODER}0.SelfAttention.{x}.weight" for x in "qkv"),
    "encoder.layers.{i}.out": (ENCODER + "0.SelfAttention.o.weight",),
    "encoder.layers.{i}.mlp_norm": (ENCODER + "1.layer_norm.weight",),
    "encoder.layers.{i}.down": (ENCODER + "1.DenseReluDense.wo.weight",),
    "encoder.final_norm": ("encoder.final_layer_norm.weight",),
    "layers.{i}.attention_norm": (DECODER + "0.layer_norm.weight",),
    "layers.{i}.qkv": tuple(f"{DECODER}0.SelfAttention.{x}.weight" for x in "qkv"),
    "layers.{i}.out": (DECODER + "0.SelfAttention.o.weight",),
    "layers.{i}.cross_norm": (DECODER + "1.layer_norm.weight",),
    "layers.{i}.cross_q": (DECODER + "1.EncDecAttention.q.weight",),
    "layers.{i}.cross_kv": tuple(f"{DECODER}1.EncDecAttention.{x}.weight" for x in "kv"),
    "layers.{i}.cross_out": (DECODER + "1.EncDecAttention.o.weight",),
    "layers.{i}.mlp_norm": (DECODER + "2.layer_norm.weight",),
    "layers.{i}.down": (DECODER + "2.DenseReluDense.wo.weight",),
    "final_norm": ("decoder.final_layer_norm.weight",),
    "head": ("lm_head.weight",),
}
COPIES = r"^(en|de)coder\.embed_tokens\.weight$"  # of the embedding
IGNORE = (r"EncDecAttention\.relative_attention_bias\.weight$",)  # written by T5's first code, which never read it


def t5(config: Config) -> Family:
    """The family of `config`: names of the MLP's tensors depend on its kind."""
    names = ("wi_0", "wi_1") if _feed_forward(config)[1] else ("wi",)
    ups = {
        f"{ours}layers.{{i}}.gate_up": tuple(f"{theirs}.DenseReluDense.{name}.weight" for name in names)
        for ours, theirs in (("encoder.", ENCODER + "1"), ("", DECODER + "2"))
    }
    return Family(_spec, {**TENSORS, **ups}, ignore=IGNORE, copies=COPIES)


def _spec(config: Config) -> ModelSpec:
    heads, layers = config.integer("num_heads"), config.integer("num_layers")
    fields = sizes(config, head_dim=config.integer("d_kv"), positions=POSITIONS)
    tied = config.flag("tie_word_embeddings", True)
    divided = config.text("model_type") != "mt5" and config.flag("scale_decoder_outputs", tied)
    activation, gated = _feed_forward(config)
    start = config.integer("decoder_start_token_id", config.integer("pad_token_id", 0, least=0), least=0)
    own = {
        "num_layers": config.integer("num_decoder_layers", layers),
        "num_kv_heads": heads,
        "ffn_size": config.integer("d_ff"),
        "norm": Norm("rms", config.number("layer_norm_epsilon", 1e-6)),
        "kinds": (LayerKind(rope=None, scale=1.0),),
        "attention": Attention(relative=_relative(config)),
        "activation": activation,
        "gated": gated,
        "head": Head(tied=tied, scale=fields["hidden_size"] ** -0.5 if divided else 1.0),
        "encoder": Encoder(layers, start),
    }
    return ModelSpec(**{**fields, **own})


def _relative(config: Config) -> RelativePositions:
    buckets = config.integer("relative_attention_num_buckets", 32)
    by_layer = config.text("model_type") == "umt5"
    return RelativePositions(buckets, config.integer("relative_attention_max_distance", 128), by_layer=by_layer)


def _feed_forward(config: Config) -> tuple[Activation, bool]:
    """The activation, and whether there is a gate: "relu", "gated-gelu", …; T5's gate is the tanh form of gelu.

    `dense_act_fn`, which transformers writes beside it, wins.
    """
    name = config.text("feed_forward_proj", "relu" if config.text("model_type") == "t5" else "gated-gelu")
    gated = name.startswith("gated-")
    act = config.text("dense_act_fn", "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-"))
    if act not in ACTIVATIONS:
        raise config.error("feed_forward_proj", f"must be one of {', '.join(ACTIVATIONS)}, perhaps after gated-")
    return ACTIVATIONS[act], gated

"""OPT and Galactica: learned positions whose first two rows are never used.

OPT 350m is post-norm, and its embedding is narrower than its layers. Galactica has no biases, and its norms have no
weights.
"""

from convert.config.config import Config
from convert.families.family import Family, activation, sizes
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Embedding, Head, LayerKind, ModelSpec, Norm

DECODER = "model.decoder."
LAYER = DECODER + "layers.{i}."
TENSORS = {
    "embedding": (DECODER + "embed_tokens.weight",),
    "project_in": (DECODER + "project_in.weight",),
    "positions": (DECODER + "embed_positions.weight",),
    "layers.{i}.attention_norm": (LAYER + "self_attn_layer_norm.weight",),
    "layers.{i}.qkv": tuple(f"{LAYER}self_attn.{x}_proj.weight" for x in "qkv"),
    "layers.{i}.out": (LAYER + "self_attn.out_proj.weight",),
    "layers.{i}.mlp_norm": (LAYER + "final_layer_norm.weight",),
    "layers.{i}.gate_up": (LAYER + "fc1.weight",),
    "layers.{i}.down": (LAYER + "fc2.weight",),
    "final_norm": (DECODER + "final_layer_norm.weight",),
    "project_out": (DECODER + "project_out.weight",),
    "head": ("lm_head.weight",),
}
UNUSED_POSITIONS = 2


def _spec(config: Config) -> ModelSpec:
    first = config.flag("do_layer_norm_before", True)
    hidden = config.integer("hidden_size")
    width = config.integer("word_embed_proj_dim", hidden)
    return ModelSpec(
        **sizes(config, positions=2048),
        norm=Norm("layer", 1e-5, weight=config.flag("layer_norm_elementwise_affine", True)),
        block="sequential" if first else "post_norm",
        kinds=(LayerKind(rope=None),),
        activation=activation(config, "relu"),
        gated=False,
        embedding=Embedding(width=0 if width == hidden else width, positions=True),
        head=Head(tied=config.flag("tie_word_embeddings", True)),
        final_norm=first and not config.flag("_remove_final_layer_norm", False),
    )


OPT = Family(_spec, TENSORS, Layout(first_position=UNUSED_POSITIONS))

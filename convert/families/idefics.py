"""The text part of Idefics 1 (Laurençon et al. 2023, arXiv 2306.16527): a Llama, with a layer that attends to pictures
in front of each `cross_layer_interval` of its own, and rows of embedding and head for the ids that were added to it.
"""

from collections.abc import Mapping
from dataclasses import replace

from convert.config.config import Config
from convert.families.family import Family, refuse
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import Cross, LayerKind, ModelSpec
from jaxengine.architecture.model_checks import MAX_LAYERS
from jaxengine.architecture.switches import Gates

GATES: Mapping[str, Gates] = {"float": "number", "vector": "vector"}
CROSS_LAYER = "model.gated_cross_attn_layers.{i}."
APART = {
    "embedding_apart": ("model.embed_tokens.additional_embedding.weight",),
    "head_apart": ("lm_head.additional_fc.weight",),
}
OF_LAYER = {name: tensors for name, tensors in TENSORS.items() if "{i}" in name}
OF_CROSS_LAYER = {
    **{name: tuple(each.replace(LAYER, CROSS_LAYER) for each in OF_LAYER[name]) for name in OF_LAYER},
    "layers.{i}.cross_q": (CROSS_LAYER + "cross_attn.q_proj.weight",),
    "layers.{i}.cross_q_norm": (CROSS_LAYER + "cross_attn.q_layer_norm.weight",),
    "layers.{i}.cross_kv": tuple(f"{CROSS_LAYER}cross_attn.{x}_proj.weight" for x in "kv"),
    "layers.{i}.cross_k_norm": (CROSS_LAYER + "cross_attn.k_layer_norm.weight",),
    "layers.{i}.cross_out": (CROSS_LAYER + "cross_attn.o_proj.weight",),
    "layers.{i}.attention_gate": (CROSS_LAYER + "alpha_cross_attn",),
    "layers.{i}.mlp_gate": (CROSS_LAYER + "alpha_dense",),
}


def idefics(config: Config) -> Family:
    layout = Layout(apart=config.integer("additional_vocab_size", 0, least=0))
    return Family(_spec, {**TENSORS, **APART, **_by_layer(config)}, layout, ignore=BUFFERS)


def _spec(config: Config) -> ModelSpec:
    refuse(config, tie_word_embeddings=False)
    spec, interval = llama_spec(config), _interval(config)
    alpha = config.text("alpha_type", "float")
    if alpha not in GATES:
        raise config.error("alpha_type", f"must be one of {', '.join(GATES)}")
    if spec.num_layers % interval:
        raise config.error("cross_layer_interval", f"must divide the {spec.num_layers} of num_hidden_layers")
    tower = config.section("vision_config")
    cross = Cross(
        width=tower.integer("embed_dim", 768) if tower else 0,
        norm=config.flag("qk_layer_norms", False),
        blind_mlp=True,
    )
    return replace(
        spec,
        vocab_size=spec.vocab_size + config.integer("additional_vocab_size", 0, least=0),
        num_layers=spec.num_layers + spec.num_layers // interval,
        kinds=(LayerKind(None, cross=cross, gates=GATES[alpha]), *spec.kinds * interval),
    )


def _interval(config: Config) -> int:
    return config.integer("cross_layer_interval", 1)


def _by_layer(config: Config) -> dict[str, tuple[str, ...]]:
    """The tensors of each layer, which checkpoints number among those of its sort."""
    made: dict[str, tuple[str, ...]] = {}
    interval = _interval(config)
    for i in range(min(config.integer("num_hidden_layers"), MAX_LAYERS)):
        made |= _numbered(OF_LAYER, i + i // interval + 1, i)
        if i % interval == 0:
            made |= _numbered(OF_CROSS_LAYER, i + i // interval, i // interval)
    return made


def _numbered(tensors: Mapping[str, tuple[str, ...]], layer: int, stored: int) -> dict[str, tuple[str, ...]]:
    return {
        name.replace("{i}", str(layer)): tuple(each.replace("{i}", str(stored)) for each in named)
        for name, named in tensors.items()
    }

"""Llama 3.2 Vision (Grattafiori et al. 2024, arXiv 2407.21783): up to 4 tiles that all see each other, positions by the
number of tiles downwards and across, and layers of the text model that attend to what the tower makes of them.
"""

from convert.config.config import Config
from convert.families.family import activation_named
from convert.families.vision import VisionFamily, convolution, image_token, patch_values, sections
from jaxengine.architecture.model import Norm, Vision
from jaxengine.architecture.vision import Connector, Tower

TOWER = "vision_model."
POSITIONS = TOWER + "gated_positional_embedding."
PROJECTOR = "multi_modal_projector."


def _layers(name: str, stored: str) -> dict[str, tuple[str, ...]]:
    layer = f"{TOWER}{stored}.layers." + "{i}."
    return {
        f"{name}.{{i}}.attention_norm": (layer + "input_layernorm.weight",),
        f"{name}.{{i}}.qkv": tuple(f"{layer}self_attn.{x}_proj.weight" for x in "qkv"),
        f"{name}.{{i}}.out": (layer + "self_attn.o_proj.weight",),
        f"{name}.{{i}}.mlp_norm": (layer + "post_attention_layernorm.weight",),
        f"{name}.{{i}}.gate_up": (layer + "mlp.fc1.weight",),
        f"{name}.{{i}}.down": (layer + "mlp.fc2.weight",),
        f"{name}.{{i}}.attention_gate": (layer + "gate_attn",),
        f"{name}.{{i}}.mlp_gate": (layer + "gate_ffn",),
    }


TENSORS = {
    "patch": (TOWER + "patch_embedding.weight",),
    "class_token": (TOWER + "class_embedding",),
    "positions": (POSITIONS + "embedding",),
    "positions_gate": (POSITIONS + "gate",),
    "tile_positions": (POSITIONS + "tile_embedding.weight",),
    "pre_tiles": (TOWER + "pre_tile_positional_embedding.embedding.weight",),
    "pre_tiles_gate": (TOWER + "pre_tile_positional_embedding.gate",),
    "post_tiles": (TOWER + "post_tile_positional_embedding.embedding.weight",),
    "post_tiles_gate": (TOWER + "post_tile_positional_embedding.gate",),
    "pre_norm": (TOWER + "layernorm_pre.weight",),
    "post_norm": (TOWER + "layernorm_post.weight",),
    **_layers("layers", "transformer"),
    **_layers("global_layers", "global_transformer"),
    "connector.only": (PROJECTOR + "weight",),
}


def mllama(config: Config) -> VisionFamily:
    return VisionFamily(_vision, TENSORS, stored={"patch": convolution})


def _vision(config: Config, hidden: int) -> Vision:
    section, _ = sections(config)
    tower = _tower(section)
    return Vision(
        tower=tower,
        connector=Connector(),
        token=image_token(config),
        patch=section.integer("patch_size"),
        patch_values=patch_values(section),
        features=_features(section, tower),
        cross=True,
    )


def _tower(section: Config) -> Tower:
    side = section.integer("image_size") // section.integer("patch_size")
    hidden, heads = section.integer("hidden_size"), section.integer("attention_heads")
    if hidden % heads:
        raise section.error("hidden_size", f"must be a multiple of attention_heads {heads}")
    if section.number("norm_eps") != 1e-5:  # the norms around the layers have this whatever it says
        raise section.error("norm_eps", "other than 1e-05 is not supported")
    tower = Tower(
        hidden_size=hidden,
        num_layers=section.integer("num_hidden_layers"),
        num_heads=heads,
        head_dim=hidden // heads,
        ffn_size=section.integer("intermediate_size"),
        norm=Norm("layer", 1e-5, bias=True),
        activation=activation_named(section, "hidden_act", section.text("hidden_act")),
        qkv_bias=False,
        out_bias=False,
        patch_bias=False,
        class_token=True,
        grid=(side, side),
        pre_norm=True,
        tiles=section.integer("max_num_tiles"),
        global_layers=section.integer("num_global_layers"),
    )
    ratios = section.get("supported_aspect_ratios")
    if not isinstance(ratios, list) or [tuple(each) for each in ratios] != [*tower.canvases]:
        raise section.error("supported_aspect_ratios", f"must be those of {tower.tiles} tiles, in order")
    return tower


def _features(section: Config, tower: Tower) -> tuple[int, ...]:
    """What these layers read, as in Meta's own code: transformers 5 has what they make, which is a layer too far."""
    layers = section.get("intermediate_layers_indices")
    if not isinstance(layers, list) or not all(type(each) is int and 0 <= each < tower.num_layers for each in layers):
        raise section.error("intermediate_layers_indices", f"must be numbers of the {tower.num_layers} layers")
    if (1 + len(layers)) * tower.hidden_size != section.integer("vision_output_dim"):
        raise section.error("vision_output_dim", f"must be {1 + len(layers)} times hidden_size {tower.hidden_size}")
    return tuple(layers)

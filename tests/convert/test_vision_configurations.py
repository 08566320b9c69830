"""Configurations as they were published are read with the numbers that the models have: what they leave out is right.

Of each, the parts that say how it sees, and of its text part what is needed.
"""

from typing import Any

import pytest

from convert.config.config import Config
from convert.errors import CheckpointError
from convert.families import family_of
from convert.families.multimodal import eyes_of, text_config

SO400M = {"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27}
SIGLIP = {**SO400M, "model_type": "siglip_vision_model", "patch_size": 14, "vision_use_head": False}
CLIP: dict[str, Any] = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
}
CLIP |= {"num_hidden_layers": 24, "patch_size": 14, "image_size": 336, "projection_dim": 768, "vocab_size": 32000}
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
INTERNVL: dict[str, Any] = {
    "image_size": [448, 448],
    "patch_size": [14, 14],
    "model_type": "internvl_vision",
    "hidden_act": "gelu",
}
INTERNVL |= {"layer_norm_eps": 1e-06, "use_mean_pooling": True}
VIT_300M = {"attention_bias": True, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
VIT_6B: dict[str, Any] = {
    "attention_bias": False,
    "hidden_size": 3200,
    "intermediate_size": 12800,
    "num_hidden_layers": 45,
}
VIT_6B |= {"num_attention_heads": 25, "norm_type": "rms_norm", "use_qk_norm": True}
QWEN = {
    "depth": 32,
    "num_heads": 16,
    "in_chans": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
IDEFICS = {"embed_dim": 1280, "image_size": 224, "intermediate_size": 5120, "num_attention_heads": 16}
IDEFICS |= {"num_hidden_layers": 32, "patch_size": 14}
MLLAMA: dict[str, Any] = {"attention_heads": 16, "hidden_size": 1280, "image_size": 560, "intermediate_size": 5120}
MLLAMA |= {"intermediate_layers_indices": [3, 7, 15, 23, 30], "max_num_tiles": 4, "model_type": "mllama_vision_model"}
MLLAMA |= {"num_global_layers": 8, "num_hidden_layers": 32, "patch_size": 14, "vision_output_dim": 7680}
RATIOS = [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]
LLAMA, MISTRAL = {"model_type": "llama"}, {"model_type": "mistral", "head_dim": 128, "hidden_size": 5120}
PUBLISHED: dict[str, dict[str, Any]] = {
    "gemma-3-4b-it": {"model_type": "gemma3", "image_token_index": 262144, "mm_tokens_per_image": 256}
    | {
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560},
        "vision_config": {**SIGLIP, "image_size": 896},
    },
    "idefics-9b": {"model_type": "idefics", "vocab_size": 32000, "additional_vocab_size": 2, "hidden_size": 4096}
    | {"cross_layer_interval": 4, "use_resampler": True, "vision_config": {**IDEFICS, "model_type": "idefics"}}
    | {"perceiver_config": {"model_type": "idefics", "qk_layer_norms_perceiver": True}},
    "idefics2-8b": {"model_type": "idefics2", "image_token_id": 32001, "perceiver_config": {"model_type": "idefics2"}}
    | {"text_config": {"model_type": "mistral", "vocab_size": 32003}}
    | {"vision_config": {**SO400M, "model_type": "idefics2", "image_size": 980, "patch_size": 14}},
    "Idefics3-8B-Llama3": {"model_type": "idefics3", "image_token_id": 128257, "scale_factor": 2, "text_config": LLAMA}
    | {"vision_config": {**SO400M, "model_type": "idefics3", "image_size": 364, "patch_size": 14}},
    "InternVL3-1B-hf": {"model_type": "internvl", "image_token_id": 151667, "text_config": {"model_type": "qwen2"}}
    | {"vision_config": {**INTERNVL, **VIT_300M}, "vision_feature_layer": -1},
    "InternVL3-38B-hf": {"model_type": "internvl", "image_token_id": 151667, "text_config": {"model_type": "qwen2"}}
    | {"vision_config": {**INTERNVL, **VIT_6B}, "vision_feature_layer": -1},
    "llava-1.5-7b-hf": {"model_type": "llava", "image_token_index": 32000, "text_config": LLAMA, "vision_config": CLIP}
    | {"vision_feature_layer": -2, "vision_feature_select_strategy": "default"},
    "llava-v1.6-mistral-7b-hf": {"model_type": "llava_next", "image_token_index": 32000, "vision_config": CLIP}
    | {"text_config": MISTRAL, "image_grid_pinpoints": PINPOINTS, "vision_feature_layer": -2},
    "Llama-3.2-11B-Vision": {"model_type": "mllama", "image_token_index": 128256}
    | {"text_config": {"model_type": "mllama_text_model", "hidden_size": 4096}}
    | {"vision_config": {**MLLAMA, "supported_aspect_ratios": RATIOS, "norm_eps": 1e-05, "hidden_act": "gelu"}},
    "Mistral-Small-3.1-24B": {"model_type": "mistral3", "image_token_index": 10, "text_config": MISTRAL}
    | {
        "vision_config": {"model_type": "pixtral", "head_dim": 64, "hidden_act": "silu", "image_size": 1540}
        | {"patch_size": 14, "rope_theta": 10000.0}
    },
    "paligemma-3b-pt-224": {"model_type": "paligemma", "image_token_index": 257152, "projection_dim": 2048}
    | {"text_config": {"model_type": "gemma", "hidden_size": 2048, "vocab_size": 257216}, "vision_config": SIGLIP},
    "pixtral-12b": {"model_type": "llava", "image_token_index": 10, "text_config": MISTRAL, "vision_feature_layer": -1}
    | {"vision_config": {"model_type": "pixtral", "head_dim": 64, "hidden_act": "silu", "image_size": 1024}}
    | {"vision_feature_select_strategy": "full"},
    "Qwen2-VL-2B": {"model_type": "qwen2_vl", "image_token_id": 151655, "hidden_size": 1536}
    | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
    | {"vision_config": {**QWEN, "embed_dim": 1280, "mlp_ratio": 4, "hidden_size": 1536, "spatial_patch_size": 14}},
    "Qwen2.5-VL-3B": {"model_type": "qwen2_5_vl", "image_token_id": 151655, "hidden_size": 2048}
    | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}
    | {"vision_config": {**QWEN, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 2048}},
    "SmolVLM-256M": {"model_type": "idefics3", "image_token_id": 49190, "scale_factor": 4, "text_config": LLAMA}
    | {"vision_config": {"hidden_size": 768, "image_size": 512, "patch_size": 16, "num_attention_heads": 12}},
    "SmolVLM2-2.2B": {"model_type": "smolvlm", "image_token_id": 49190, "scale_factor": 3, "text_config": LLAMA}
    | {"vision_config": {**SO400M, "model_type": "smolvlm_vision", "image_size": 384, "patch_size": 14}},
}
# Of the tower: width, layers run, heads' width, inner width, activation, kind and epsilon of norms, positions. Rows
# and columns of a tile. The side of the squares that become a row, and what a picture's tokens see.
Read = tuple[int, int, int, int, str, str, float, str, tuple[int, ...], int, str]
SEES: dict[str, Read] = {
    "gemma-3-4b-it": (1152, 27, 72, 4304, "gelu_tanh", "layer", 1e-6, "learned", (64, 64), 4, "image"),
    "idefics-9b": (1280, 32, 80, 5120, "gelu", "layer", 1e-5, "learned", (16, 16), 1, "token"),
    "idefics2-8b": (1152, 27, 72, 4304, "gelu_tanh", "layer", 1e-6, "bucketised", (), 1, "token"),
    "Idefics3-8B-Llama3": (1152, 27, 72, 4304, "gelu_tanh", "layer", 1e-6, "bucketised", (26, 26), 2, "token"),
    "InternVL3-1B-hf": (1024, 24, 64, 4096, "gelu", "layer", 1e-6, "learned", (32, 32), 2, "token"),
    "InternVL3-38B-hf": (3200, 45, 128, 12800, "gelu", "rms", 1e-6, "learned", (32, 32), 2, "token"),
    "llava-1.5-7b-hf": (1024, 23, 64, 4096, "quick_gelu", "layer", 1e-5, "learned", (24, 24), 1, "token"),
    "llava-v1.6-mistral-7b-hf": (1024, 23, 64, 4096, "quick_gelu", "layer", 1e-5, "learned", (24, 24), 1, "token"),
    "Llama-3.2-11B-Vision": (1280, 32, 80, 5120, "gelu", "layer", 1e-5, "learned", (40, 40), 1, "token"),
    "Mistral-Small-3.1-24B": (1024, 24, 64, 4096, "silu", "rms", 1e-5, "none", (), 2, "token"),
    "paligemma-3b-pt-224": (1152, 27, 72, 4304, "gelu_tanh", "layer", 1e-6, "learned", (16, 16), 1, "prompt"),
    "pixtral-12b": (1024, 24, 64, 4096, "silu", "rms", 1e-5, "none", (), 1, "token"),
    "Qwen2-VL-2B": (1280, 32, 80, 5120, "quick_gelu", "layer", 1e-6, "none", (), 2, "token"),
    "Qwen2.5-VL-3B": (1280, 32, 80, 3420, "silu", "rms", 1e-6, "none", (), 2, "token"),
    "SmolVLM-256M": (768, 12, 64, 3072, "gelu_tanh", "layer", 1e-6, "bucketised", (32, 32), 4, "token"),
    "SmolVLM2-2.2B": (1152, 27, 72, 4304, "gelu_tanh", "layer", 1e-6, "bucketised", (27, 27), 3, "token"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_has_its_models_numbers(name: str) -> None:
    eyes = eyes_of(Config(PUBLISHED[name], name))
    assert eyes is not None
    vision = eyes.family.spec(eyes.config, _hidden(eyes.config))
    tower = vision.tower
    sizes = (tower.hidden_size, tower.num_layers, tower.head_dim, tower.ffn_size, tower.activation)
    seen = (vision.tile, vision.connector.merge, vision.horizon)
    assert (*sizes, tower.norm.kind, tower.norm.eps, tower.positions, *seen) == SEES[name]


def test_a_tower_that_no_layers_fit_is_refused_with_the_field_and_its_limit() -> None:
    """Its layers are checked where their parameters are made, behind those of the text."""
    published = PUBLISHED["SmolVLM-256M"] | {"image_token_id": 5}
    config = Config(published | {"vision_config": published["vision_config"] | {"num_hidden_layers": 10**7}}, "x.json")
    eyes, text = eyes_of(config), family_of(text_config(config)).spec(text_config(config))
    assert eyes is not None
    with pytest.raises(CheckpointError, match=r"x\.json: num_layers must be at most 4096, got 10000000"):
        eyes.recipes(eyes.given_to(text))


def test_the_text_reads_what_chosen_layers_of_llama_3_2_vision_read() -> None:
    """As Meta's code has it: the number of a layer is how many are in front of it."""
    eyes = eyes_of(Config(PUBLISHED["Llama-3.2-11B-Vision"], "config.json"))
    assert eyes is not None
    vision = eyes.family.spec(eyes.config, 4096)
    assert (vision.features, vision.feature_size) == ((3, 7, 15, 23, 30), 7680)


def _hidden(config: Config) -> int:
    text = config.section("text_config") or config
    return text.integer("hidden_size")

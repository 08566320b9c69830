"""The numbers that repositories on the hub have for pictures, in their spellings, over the tiny models' other files.

Of each: the recipe whose tokenizer it has, and what its JSON files say instead of the recipe's. "" is config.json's
vision_config. The keys of a file that are set to None are left out.
"""

from pathlib import Path
from typing import Any

from tests.gateway.images.models import changed

CLIP_336 = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
NONE_OF_PATCHES = {"patch_size": None, "num_additional_image_tokens": None, "vision_feature_select_strategy": None}
HUB: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "llava-1.5": ("llava", {"": {"image_size": 336}, "preprocessor_config.json": CLIP_336}),
    "llava-1.5, size as a number": (
        "llava",
        {"": {"image_size": 336}, "preprocessor_config.json": {"size": 336, "crop_size": 336}},
    ),
    "llava-v1.6": (
        "llava_next",
        {
            "": {"image_size": 336},
            "config.json": {"image_grid_pinpoints": PINPOINTS},
            "preprocessor_config.json": {**CLIP_336, "image_grid_pinpoints": PINPOINTS},
        },
    ),
    "qwen2-vl": (
        "qwen2_vl",
        {"preprocessor_config.json": {"min_pixels": 3136, "max_pixels": 1003520, "size": None}},
    ),
    "qwen2-vl, pixels in size": (
        "qwen2_vl",
        {
            "preprocessor_config.json": {
                "min_pixels": 3136,
                "max_pixels": 1003520,
                "size": {"min_pixels": 3136, "max_pixels": 1003520},
            }
        },
    ),
    "qwen3-vl": (
        "qwen3_vl",
        {"preprocessor_config.json": {"size": {"shortest_edge": 65536, "longest_edge": 1 << 20}}},
    ),
    "gemma-3": (
        "gemma3",
        {
            "": {"image_size": 896},
            "config.json": {"mm_tokens_per_image": 256},
            "preprocessor_config.json": {"size": {"height": 896, "width": 896}, "image_seq_length": 256},
            "processor_config.json": {"image_seq_length": 256},
        },
    ),
    "idefics3-8b": (
        "idefics3",
        {
            "": {"image_size": 364},
            "preprocessor_config.json": {"size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}},
            "processor_config.json": {"image_seq_len": 169},
        },
    ),
    "smolvlm": (
        "smolvlm",
        {
            "": {"image_size": 384},
            "config.json": {"scale_factor": 3},
            "preprocessor_config.json": {"size": {"longest_edge": 1536}, "max_image_size": {"longest_edge": 384}},
            "processor_config.json": {"image_seq_len": 81},
        },
    ),
    "smolvlm2": (
        "smolvlm",
        {
            "": {"image_size": 512, "patch_size": 16},
            "config.json": {"scale_factor": 4},
            "preprocessor_config.json": {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
            "processor_config.json": {"image_seq_len": 64},
        },
    ),
    "pixtral-12b": (
        "pixtral",
        {"": {"image_size": 1024}, "preprocessor_config.json": {"size": {"longest_edge": 1024}}},
    ),
    "llama-3.2-vision": (
        "mllama",
        {"": {"image_size": 560}, "preprocessor_config.json": {"size": {"height": 560, "width": 560}}},
    ),
    "mistral-small-3.1": (
        "mistral3",
        {"": {"image_size": 1540}, "preprocessor_config.json": {"size": {"longest_edge": 1540}}},
    ),
    "idefics-9b": (
        "idefics",
        {"": {"image_size": 224}, "preprocessor_config.json": {"image_size": 224}},
    ),
    "idefics2-8b": (
        "idefics2",
        {
            "": {"image_size": 980},
            "config.json": {"perceiver_config": {"resampler_n_latents": 64}},
            "preprocessor_config.json": {"size": {"longest_edge": 980, "shortest_edge": 378}},
            "processor_config.json": {"image_seq_len": 64},
        },
    ),
    "internvl3": (
        "internvl",
        {
            "": {"image_size": [448, 448]},
            "preprocessor_config.json": {"size": {"height": 448, "width": 448}, "max_patches": 12},
            "processor_config.json": {"image_seq_length": 256},
        },
    ),
    "paligemma-448": (
        "paligemma",
        {
            "": {"image_size": 448},
            "preprocessor_config.json": {"size": {"height": 448, "width": 448}, "image_seq_length": 1024},
        },
    ),
}


def hub_directory(name: str, target: Path) -> Path:
    """The repository `name` written to `target`."""
    recipe, files = HUB[name]
    return changed(recipe, target, files)

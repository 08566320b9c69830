"""Tiny random checkpoints of models that see, as repositories on the hub have them: one recipe for each way to see.

Every parameter is drawn, large enough that norms, biases, positions and gates move the rows of a picture, and pictures
move the logits. Text parts share one size; a picture's placeholder is token 300 in all. `tiny_vision_prompts` has
tokens, chat templates and processor files; `vision_references` what transformers computes with them.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.tiny_vision_prompts import IMAGE, VOCAB, token_id, write_prompt_files

transformers.logging.disable_progress_bar()

LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
TEXT: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, **LAYERS}
TEXT |= {"max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "dtype": "float32"}
TOWER: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
TOWER |= {"patch_size": 14, "num_channels": 3}
SIGLIP = {**TOWER, "model_type": "siglip_vision_model", "vision_use_head": False}
CLIP = {**TOWER, "model_type": "clip_vision_model", "image_size": 28, "projection_dim": 16, "num_hidden_layers": 3}
PIXTRAL = {**TOWER, "model_type": "pixtral", "head_dim": 16, "image_size": 112}
QWEN = {"depth": 2, "num_heads": 2, "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2}
QWEN |= {"temporal_patch_size": 2}
QWEN_IDS = {"image_token_id": IMAGE, "vision_start_token_id": 301, "vision_end_token_id": 302, "video_token_id": 303}
MLLAMA: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "attention_heads": 2}
MLLAMA |= {"image_size": 28, "num_global_layers": 2, "max_num_tiles": 4, "vision_output_dim": 96}
MLLAMA |= {"intermediate_layers_indices": [0, 2], "patch_size": 14}
MLLAMA |= {"supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]}
INTERNVL = {**TOWER, "image_size": [56, 56], "patch_size": [14, 14], "layer_scale_init_value": 0.1}
PINPOINTS = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]


def _text(model_type: str, **fields: Any) -> dict[str, Any]:
    return {**TEXT, "model_type": model_type, **fields}


def _sections(**fields: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3], **fields}
    return {**TEXT, "rope_parameters": rope}


def _llava(tower: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"vision_config": tower, "text_config": _text("llama"), "image_token_index": IMAGE, **fields}


def _idefics3(**fields: Any) -> dict[str, Any]:
    vision = {**TOWER, "image_size": 56, "max_image_size": {"longest_edge": 56}}
    return {
        "vision_config": vision,
        "text_config": _text("llama"),
        "image_token_id": IMAGE,
        "scale_factor": 2,
        **fields,
    }


def _internvl(norm: str, **fields: Any) -> dict[str, Any]:
    vision = {**INTERNVL, "norm_type": norm, **fields}
    return {"vision_config": vision, "text_config": _text("qwen2"), "image_token_id": IMAGE, "image_seq_length": 4} | {
        "downsample_ratio": 0.5,
        "tie_word_embeddings": False,
    }


IDEFICS: dict[str, Any] = {"embed_dim": 32, "image_size": 28, "patch_size": 14, "intermediate_size": 64}
IDEFICS |= {"num_hidden_layers": 2, "num_attention_heads": 2}
RESAMPLER = {"resampler_n_latents": 4, "resampler_depth": 2, "resampler_n_heads": 2, "resampler_head_dim": 16}


def _idefics(**fields: Any) -> dict[str, Any]:
    """Its ids from the picture's on are in tensors of their own, and its keys have as many heads as its queries."""
    text = {name: value for name, value in TEXT.items() if name not in ("num_key_value_heads", "head_dim")}
    added = {"vocab_size": IMAGE, "additional_vocab_size": VOCAB - IMAGE, "image_token_id": IMAGE}
    return {"model_type": "idefics", **text, **added, "vision_config": IDEFICS, **fields}


PERCEIVER = {"resampler_n_latents": 4, "resampler_depth": 2, "resampler_n_heads": 4, "resampler_head_dim": 16}
PERCEIVER |= {"num_key_value_heads": 2, "hidden_size": 64}
LAYER_TYPES = ["sliding_attention", "full_attention"]

# Recipes whose pictures are served.
SEEN: dict[str, dict[str, Any]] = {
    "llava": {"model_type": "llava", **_llava(CLIP), "image_seq_length": 4},
    "llava_siglip": {"model_type": "llava", **_llava({**SIGLIP, "image_size": 56}), "vision_feature_layer": -1}
    | {"vision_feature_select_strategy": "full", "image_seq_length": 16, "text_config": _text("qwen2")},
    "llava_layers": {"model_type": "llava", **_llava(CLIP, vision_feature_layer=[1, -1]), "image_seq_length": 4},
    "llava_next": {"model_type": "llava_next", **_llava(CLIP), "image_grid_pinpoints": PINPOINTS}
    | {"text_config": _text("mistral", sliding_window=None), "image_seq_length": 4},
    "pixtral": {"model_type": "llava", **_llava({**PIXTRAL, "patch_size": 16, "image_size": 128})}
    | {"text_config": _text("mistral", sliding_window=None)}
    | {"vision_feature_layer": -1, "vision_feature_select_strategy": "full", "image_seq_length": 1},
    "mistral3": {"model_type": "mistral3", **_llava(PIXTRAL), "text_config": _text("mistral", sliding_window=None)}
    | {"spatial_merge_size": 2, "vision_feature_layer": -1, "tie_word_embeddings": False},
    "gemma3": {"model_type": "gemma3", "vision_config": {**SIGLIP, "image_size": 56}, "image_token_index": IMAGE}
    | {"text_config": {**TEXT, "sliding_window": 8, "layer_types": LAYER_TYPES, "query_pre_attn_scalar": 16}}
    | {"mm_tokens_per_image": 4, "boi_token_index": 301, "eoi_token_index": 302},
    "idefics": _idefics(use_resampler=True, qk_layer_norms=True, alpha_type="vector", cross_layer_interval=1)
    | {"perceiver_config": {**RESAMPLER, "qk_layer_norms_perceiver": True}},
    "idefics_plain": _idefics(num_hidden_layers=4, cross_layer_interval=2),
    "idefics2": {"model_type": "idefics2", "vision_config": {**TOWER, "image_size": 56}, "image_token_id": IMAGE}
    | {"perceiver_config": PERCEIVER, "text_config": _text("mistral", sliding_window=None)},
    "idefics3": {"model_type": "idefics3", **_idefics3()},
    "smolvlm": {"model_type": "smolvlm", **_idefics3(tie_word_embeddings=True)},
    "qwen2_vl": {"model_type": "qwen2_vl", "text_config": _sections(), **QWEN_IDS}
    | {"vision_config": {**QWEN, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}},
    "qwen2_5_vl": {"model_type": "qwen2_5_vl", "text_config": _sections(), **QWEN_IDS}
    | {"vision_config": {**QWEN, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64}}
    | {"tie_word_embeddings": True},
    "qwen3_vl": {"model_type": "qwen3_vl", "text_config": _sections(mrope_interleaved=True), **QWEN_IDS}
    | {"vision_config": {**QWEN, "depth": 3, "patch_size": 16, "hidden_size": 32, "intermediate_size": 64}},
    "internvl": {"model_type": "internvl", **_internvl("layer_norm", attention_bias=True)},
    "internvl_rms": {"model_type": "internvl", **_internvl("rms_norm", use_qk_norm=True)},
    "mllama": {"model_type": "mllama", "vision_config": MLLAMA, "image_token_index": IMAGE}
    | {"text_config": {**TEXT, "num_hidden_layers": 5, "cross_attention_layers": [1, 3]}},
    "paligemma": {"model_type": "paligemma", "vision_config": {**SIGLIP, "image_size": 28}, "image_token_index": IMAGE}
    | {"text_config": _text("gemma", num_image_tokens=4), "projection_dim": 64, "hidden_size": 64, "vocab_size": VOCAB},
}
SEEN["qwen2_5_vl"]["vision_config"] |= {"window_size": 56, "fullatt_block_indexes": [1]}
SEEN["qwen3_vl"]["vision_config"] |= {"out_hidden_size": 64, "num_position_embeddings": 16}
SEEN["qwen3_vl"]["vision_config"] |= {"deepstack_visual_indexes": [0, 1], "hidden_act": "gelu_pytorch_tanh"}

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "mlp_only_layers": [0]}
SEEN["qwen3_vl_moe"] = SEEN["qwen3_vl"] | {"model_type": "qwen3_vl_moe"}
SEEN["qwen3_vl_moe"]["text_config"] = SEEN["qwen3_vl"]["text_config"] | EXPERTS
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 12, "linear_value_head_dim": 8}
LINEAR |= {"full_attention_interval": 2}
SHARED_EXPERT = {**EXPERTS, "mlp_only_layers": [], "shared_expert_intermediate_size": 24}
for name, more in (("qwen3_5", LINEAR), ("qwen3_5_moe", LINEAR | SHARED_EXPERT)):
    turned = _sections(mrope_interleaved=True, partial_rotary_factor=0.5, mrope_section=[2, 1, 1])
    tower = SEEN["qwen3_vl"]["vision_config"].items()
    SEEN[name] = SEEN["qwen3_vl"] | {"model_type": name, "text_config": turned | more}
    SEEN[name]["vision_config"] = {key: value for key, value in tower if key != "deepstack_visual_indexes"}

# Recipes of models that are refused by name.
LLAMA4 = {**TOWER, "image_size": 28, "patch_size": 7, "intermediate_size": 128, "pixel_shuffle_ratio": 0.5}
LLAMA4 |= {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
REFUSED: dict[str, dict[str, Any]] = {
    "llama4": {"model_type": "llama4", "vision_config": LLAMA4, "image_token_index": IMAGE}
    | {"text_config": {**TEXT, "intermediate_size_mlp": 96, "num_local_experts": 2}},
}
RECIPES = SEEN | REFUSED

# transformers writes a tower without the level that the repositories on the hub have.
HUB_NAMES = ((r"^vision_tower\.(?=embeddings|encoder|pre_layrnorm|post_layernorm|head)", "vision_tower.vision_model."),)
TURNED = ("qwen3_vl_moe",)  # whose experts it writes [expert, out, in]
WITH_LEVEL = ("llava", "llava_siglip", "llava_layers", "llava_next", "gemma3", "paligemma")


def write_vision(directory: Path, name: str, *, seed: int = 0, dtype: str = "float32", **fields: Any) -> Path:
    """Write the recipe `name` to `directory/name`: weights, configuration, tokenizer, template and processor files.
    `fields` replace those of its configuration.
    """
    target = directory / name
    redraw(build(name, **fields), seed).to(getattr(torch, dtype)).save_pretrained(target)
    if name in WITH_LEVEL:
        _rename(target / "model.safetensors")
    if name in TURNED:
        turn_experts(target / "model.safetensors")
    write_prompt_files(target, name)
    return target


def turn_experts(file: Path) -> None:
    """Swap the last two axes of experts, which lie in one tensor."""
    tensors = load_file(file)
    turned = {name: tensors[name].transpose(1, 2).contiguous() for name in tensors if ".experts." in name}
    save_file(tensors | turned, file, metadata={"format": "pt"})


def build(name: str, **fields: Any) -> Any:
    """transformers' model of the recipe `name`, with `fields` replaced, its weights not yet drawn."""
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps({**RECIPES[name], **fields})))
    return transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()


@torch.no_grad()
def redraw(model: Any, seed: int = 0) -> Any:
    """Draw every parameter again, so that each branch of tower, connector and text moves the logits."""
    generator = torch.Generator().manual_seed(seed)
    tied = getattr(model.config, "tie_word_embeddings", False)
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "alpha_" in name or parameter.numel() == 1:
            parameter.copy_(0.7 + 0.1 * noise)
        elif parameter.ndim <= 1:
            begun = parameter.unique()  # zero or one; or noise, which would be another in each process
            parameter.copy_((begun if begun.numel() == 1 else 0) + 0.2 * noise)
        elif "norm" in name and "weight" in name:
            parameter.add_(0.2 * noise)
        elif parameter is model.get_input_embeddings().weight:
            parameter.copy_((0.12 if tied else 0.4) * noise)
        elif id(parameter) in embeddings or re.search(r"position|cls_token|latents|probe", name):
            parameter.copy_(0.4 * noise)
        else:
            inputs = parameter.shape[-1] if ".experts." in name else parameter[0].numel()
            parameter.copy_(noise * (2.0 if tied and "vision" not in name else 1.3) / math.sqrt(inputs))
    return model


def _rename(file: Path) -> None:
    tensors = {}
    for name, values in load_file(file).items():
        for pattern, replacement in HUB_NAMES:
            name = re.sub(pattern, replacement, name)
        tensors[name] = values
    save_file(tensors, file, metadata={"format": "pt"})


__all__ = [
    "IMAGE",
    "RECIPES",
    "REFUSED",
    "SEEN",
    "VOCAB",
    "build",
    "redraw",
    "token_id",
    "turn_experts",
    "write_vision",
]

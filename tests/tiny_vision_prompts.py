"""What stands beside the weights of a tiny model that sees: tokenizer, chat template, processor files of its family.

Files, keys and special tokens are those of the family's repositories on the hub; numbers are small. Templates are short
ones of the same form: where they put a picture, and whether they take text, parts, or both as a message's content.
"""

import functools
import json
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

IMAGE = 300  # the placeholder's id in every recipe; 301 and 302 are what stands around or between
VOCAB = 384
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]
CORPUS = ["What is in the picture?\n\nA dog, or a cat.", "user: describe these images.\nassistant: the river ends"]

GRID = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
QWEN_TOKENS = ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>", "<|im_start|>", "<|im_end|>"]
MISTRAL_TOKENS = ["[IMG]", "[IMG_BREAK]", "[IMG_END]", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]
IDEFICS_TOKENS = ["<image>", "<fake_token_around_image>", "<end_of_utterance>"]
TOKENS: dict[str, list[str]] = {
    "llava": ["<image>"],
    "llava_siglip": ["<image>", "<|im_start|>", "<|im_end|>"],
    "llava_next": ["<image>"],
    "pixtral": MISTRAL_TOKENS,
    "mistral3": MISTRAL_TOKENS,
    "gemma3": ["<image_soft_token>", "<start_of_image>", "<end_of_image>", "<start_of_turn>", "<end_of_turn>"],
    "idefics": IDEFICS_TOKENS,
    "idefics2": IDEFICS_TOKENS,
    "idefics3": [*IDEFICS_TOKENS, "<global-img>", *GRID],
    "smolvlm": [*IDEFICS_TOKENS, "<global-img>", *GRID, "<|im_start|>"],
    "qwen2_vl": QWEN_TOKENS,
    "qwen2_5_vl": QWEN_TOKENS,
    "qwen3_vl": QWEN_TOKENS,
    "internvl": ["<IMG_CONTEXT>", "<img>", "</img>", "<video>", "<|im_start|>", "<|im_end|>"],
    "paligemma": ["<image>"],
    "mllama": ["<|image|>"],
    "llama4": ["<|image|>", "<|image_start|>", "<|image_end|>", "<|patch|>", "<|tile_x_separator|>"],
}
INTERNVL_NAMES = {"context_image_token": "<IMG_CONTEXT>", "start_image_token": "<img>", "end_image_token": "</img>"}
# Names that the tokenizer's configuration gives to tokens.
NAMED: dict[str, dict[str, str]] = {
    "gemma3": {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
    "internvl": {**INTERNVL_NAMES, "video_token": "<video>"},
    "paligemma": {"image_token": "<image>"},
}
WITHOUT_BOS = ("llava_siglip", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "smolvlm")

_EACH = "{% for message in messages %}"
_PARTS = "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
_TEXT = "{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
_STRING = "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
_IMAGES_FIRST = "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
_TEXTS = "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] + ' ' }}{% endfor %}"
_CHATML = _EACH + "{{ '<|im_start|>' + message['role'] + '\n' }}" + _STRING + _PARTS
_CHATML_END = _TEXT + "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
_CHATML_END += "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
_IDEFICS = _EACH + "{{ message['role'] | capitalize }}{{ ':' if message['content'][0]['type'] == 'image' else ': ' }}"
_IDEFICS += _PARTS + "<image>" + _TEXT + "{{ '<end_of_utterance>\n' }}{% endfor %}"
_IDEFICS += "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
_GEMMA_ROLE = "{{ 'model' if message['role'] == 'assistant' else message['role'] }}"
_GEMMA_TEXT = "{% else %}{{ part['text'] | trim }}{% endif %}{% endfor %}{% endif %}"
_MISTRAL = "{{ bos_token }}" + _EACH + "{% if message['role'] == 'user' %}[INST]" + _STRING + _PARTS + "[IMG]" + _TEXT
_MISTRAL += "{% endif %}[/INST]{% elif message['role'] == 'system' %}[SYSTEM_PROMPT]{{ message['content'] }}"
_MISTRAL += "[/SYSTEM_PROMPT]{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
_QWEN = _CHATML + "<|vision_start|><|image_pad|><|vision_end|>" + _CHATML_END
TEMPLATES: dict[str, str] = {
    "llava": _EACH
    + "{{ message['role'].upper() + ': ' }}"
    + _IMAGES_FIRST
    + _TEXTS
    + "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    "llava_siglip": _CHATML + "<image>" + _CHATML_END,
    "llava_next": _EACH
    + "{% if message['role'] == 'user' %}{{ '[INST] ' }}"
    + _IMAGES_FIRST
    + _TEXTS
    + "{{ '[/INST]' }}{% else %}{{ ' ' }}"
    + _TEXTS
    + "{{ eos_token }}{% endif %}{% endfor %}",
    "pixtral": _MISTRAL,
    "mistral3": _MISTRAL,
    "gemma3": "{{ bos_token }}"
    + _EACH
    + "{{ '<start_of_turn>' }}"
    + _GEMMA_ROLE
    + "{{ '\n' }}{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}"
    + _PARTS
    + "<start_of_image>"
    + _GEMMA_TEXT
    + "{{ '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    "idefics": _IDEFICS,
    "idefics2": _IDEFICS,
    "idefics3": "<s>" + _IDEFICS,
    "smolvlm": "<|im_start|>" + _IDEFICS,
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
    "mllama": "{{ bos_token }}"
    + _EACH
    + "{{ message['role'] + ': ' }}"
    + _STRING
    + _PARTS
    + "<|image|>"
    + _TEXT
    + "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
    "internvl": _CHATML + "{{ '<IMG_CONTEXT>\n' }}" + _CHATML_END,
}
IN_JSON = (
    "llava",
    "qwen2_vl",
    "idefics3",
)  # templates that stand in chat_template.json, as older repositories have them

STANDARD = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
OPENAI = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
STEPS = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_convert_rgb": True}
CLIP_STEPS = {**STEPS, **OPENAI, "resample": 3, "do_center_crop": True, "crop_size": {"height": 28, "width": 28}}
CLIP_STEPS |= {"size": {"shortest_edge": 28}}
SQUARE = {"size": {"height": 56, "width": 56}, **STEPS, **STANDARD}
TILED = {**STEPS, **STANDARD, "resample": 1, "do_image_splitting": True, "do_pad": True}
TILED |= {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}
QWEN_STEPS = {**STEPS, **OPENAI, "resample": 3, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
PREPROCESSORS: dict[str, dict[str, Any]] = {
    "llava": {"image_processor_type": "CLIPImageProcessor", **CLIP_STEPS},
    "llava_siglip": {"image_processor_type": "SiglipImageProcessor", **SQUARE, "resample": 3},
    "llava_next": {"image_processor_type": "LlavaNextImageProcessor", **CLIP_STEPS, "aspect_ratio_setting": "anyres"}
    | {"image_grid_pinpoints": [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]},
    "pixtral": {"image_processor_type": "PixtralImageProcessor", **STEPS, **OPENAI, "resample": 3}
    | {"patch_size": {"height": 16, "width": 16}, "size": {"longest_edge": 128}},
    "mistral3": {"image_processor_type": "PixtralImageProcessorFast", **STEPS, **OPENAI, "resample": 3}
    | {"patch_size": 14, "size": {"longest_edge": 112}},
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", **SQUARE, "resample": 2, "image_seq_length": 4}
    | {"do_convert_rgb": None, "do_pan_and_scan": None, "pan_and_scan_max_num_crops": None}
    | {"pan_and_scan_min_crop_size": None, "pan_and_scan_min_ratio_to_activate": None},
    "idefics": {"image_processor_type": "IdeficsImageProcessor", **OPENAI, "image_size": 28, "image_num_channels": 3},
    "idefics2": {"image_processor_type": "Idefics2ImageProcessor", **STEPS, **STANDARD, "resample": 2, "do_pad": True}
    | {"do_image_splitting": True, "size": {"longest_edge": 56, "shortest_edge": 42}},
    "idefics3": {"image_processor_type": "Idefics3ImageProcessor", **TILED},
    "smolvlm": {"image_processor_type": "SmolVLMImageProcessor", **TILED},
    "qwen2_vl": {"image_processor_type": "Qwen2VLImageProcessor", **QWEN_STEPS, "min_pixels": 3136}
    | {"max_pixels": 28 * 28 * 12},
    "qwen2_5_vl": {"image_processor_type": "Qwen2VLImageProcessor", **QWEN_STEPS, "min_pixels": 3136}
    | {"max_pixels": 28 * 28 * 24},
    "qwen3_vl": {"image_processor_type": "Qwen2VLImageProcessorFast", **QWEN_STEPS, **STANDARD, "patch_size": 16}
    | {"size": {"shortest_edge": 32 * 32 * 2, "longest_edge": 32 * 32 * 12}},
    "internvl": {"image_processor_type": "GotOcr2ImageProcessorFast", **SQUARE, **OPENAI, "resample": 3}
    | {"crop_to_patches": False, "min_patches": 1, "max_patches": 6},
    "mllama": {"image_processor_type": "MllamaImageProcessor", **STEPS, **OPENAI, "resample": 2, "do_pad": True}
    | {"size": {"height": 28, "width": 28}, "max_image_tiles": 4},
    "paligemma": {"image_processor_type": "SiglipImageProcessor", **SQUARE, "resample": 3, "image_seq_length": 4}
    | {"size": {"height": 28, "width": 28}},
}
LLAVA = {"image_token": "<image>", "num_additional_image_tokens": 1, "patch_size": 14}
LLAVA |= {"vision_feature_select_strategy": "default"}
MISTRAL = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
PROCESSORS: dict[str, dict[str, Any]] = {
    "llava": {"processor_class": "LlavaProcessor", **LLAVA},
    "llava_siglip": {"processor_class": "LlavaProcessor", **LLAVA, "num_additional_image_tokens": 0}
    | {"vision_feature_select_strategy": "full"},
    "llava_next": {"processor_class": "LlavaNextProcessor", **LLAVA},
    "pixtral": {"processor_class": "PixtralProcessor", **MISTRAL, "patch_size": 16},
    "mistral3": {"processor_class": "PixtralProcessor", **MISTRAL, "patch_size": 14, "spatial_merge_size": 2},
    "gemma3": {"processor_class": "Gemma3Processor", "image_seq_length": 4},
    "idefics": {"processor_class": "IdeficsProcessor"},
    "idefics2": {"processor_class": "Idefics2Processor", "image_seq_len": 4},
    "idefics3": {"processor_class": "Idefics3Processor", "image_seq_len": 4},
    "smolvlm": {"processor_class": "SmolVLMProcessor", "image_seq_len": 4},
    "qwen2_vl": {"processor_class": "Qwen2VLProcessor"},
    "qwen2_5_vl": {"processor_class": "Qwen2_5_VLProcessor"},
    "qwen3_vl": {"processor_class": "Qwen3VLProcessor"},
    "internvl": {"processor_class": "InternVLProcessor", "image_seq_length": 4},
    "mllama": {"processor_class": "MllamaProcessor"},
    "paligemma": {"processor_class": "PaliGemmaProcessor"},
}
IN_PREPROCESSOR = (
    "idefics",
    "mllama",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "paligemma",
)  # without a processor_config.json of their own
ALIASES = {"llava_layers": "llava", "internvl_rms": "internvl", "idefics_plain": "idefics"}
ALIASES |= dict.fromkeys(("qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), "qwen3_vl")


def kind_of(name: str) -> str:
    """The recipe whose tokens, template and processor the recipe `name` has."""
    return ALIASES.get(name, name)


def token_id(name: str, token: str) -> int:
    """The id of a special token of the recipe `name`."""
    return IMAGE + TOKENS[kind_of(name)].index(token)


def write_prompt_files(target: Path, name: str) -> None:
    """Write tokenizer, chat template and processor files of the recipe `name` beside its weights."""
    kind = kind_of(name)
    tokenizer(kind).save_pretrained(target)
    if template := TEMPLATES.get(kind):
        if kind in IN_JSON:
            _write(target / "chat_template.json", {"chat_template": template})
        else:
            (target / "chat_template.jinja").write_text(template)
    if kind in PREPROCESSORS:
        _write(target / "preprocessor_config.json", PREPROCESSORS[kind] | _class_of(kind))
        if kind not in IN_PREPROCESSOR:
            _write(target / "processor_config.json", PROCESSORS[kind])


def _class_of(kind: str) -> dict[str, Any]:
    return {"processor_class": PROCESSORS[kind]["processor_class"]}


def _write(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=1))


@functools.cache
def tokenizer(kind: str) -> transformers.PreTrainedTokenizerFast:
    """A byte-level BPE of 300 entries, "\\n\\n" among them, and the special tokens of `kind` behind these."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    settings: dict[str, Any] = {"special_tokens": SPECIALS, "initial_alphabet": alphabet, "show_progress": False}
    bpe.train_from_iterator(CORPUS * 4, trainers.BpeTrainer(vocab_size=IMAGE, **settings))
    assert bpe.get_vocab_size() == IMAGE
    if kind not in WITHOUT_BOS:
        bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, **named, model_max_length=512, extra_special_tokens=NAMED.get(kind, {})
    )
    made.add_tokens([*TOKENS[kind]], special_tokens=True)
    assert made.convert_tokens_to_ids(TOKENS[kind][0]) == IMAGE
    return made

"""Models that also take pictures: their text part, which is a model of one of the families.

transformers' configuration classes fill in defaults and know where each model keeps its text part. The list has only
models that read a text without a picture as their text part alone would. PaliGemma does not: each token of its prompt
attends to the whole prompt.
"""

from convert.config.config import Config
from convert.errors import CheckpointError
from convert.formats.tensors import Tensors
from convert.mapping.renamed_tensors import RenamedTensors

MODELS = (
    "gemma3",
    "idefics2",
    "idefics3",
    "internvl",
    "llava",
    "llava_next",
    "mistral3",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_vl",
    "smolvlm",
)
# The family of each text part. These parts have three positions for a token, which are equal without a picture.
TEXT_TYPES = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
# How the frequencies of these are shared by a token's three positions, where the configuration does not say it.
SECTIONS = {"qwen2_vl_text": [16, 24, 24], "qwen2_5_vl_text": [16, 24, 24], "qwen3_vl_text": [24, 20, 20]}
INTERLEAVED = ("qwen3_vl_text",)  # whatever the configuration says, as in transformers
TOWERS = r"^(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|connector|image_newline)\b"
RENAMES = (
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^(model\.)?(language_model|text_model)\.(model\.)?", "model."),
)


def text_part(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Configuration and tensors of the text part; unchanged for a model that takes text alone.

    Raises:
        CheckpointError: transformers cannot read the configuration.
    """
    if config.text("model_type") not in MODELS:
        return config, tensors
    return text_config(config), RenamedTensors(tensors, RENAMES, but=TOWERS)


def text_config(config: Config) -> Config:
    """`text_part`'s configuration."""
    if config.text("model_type") not in MODELS:
        return config
    from transformers import AutoConfig

    try:
        whole = AutoConfig.for_model(**config.values)
        values = whole.get_text_config().to_dict()
    except Exception as error:  # whatever transformers raises for a configuration
        raise CheckpointError.by(error, config.where, "transformers cannot read it") from error
    kind = values["model_type"]
    if kind in SECTIONS:
        sections = {"mrope_section": SECTIONS[kind], **values["rope_parameters"]}
        values["rope_parameters"] = {**sections, "mrope_interleaved": kind in INTERLEAVED}
    values["model_type"] = TEXT_TYPES.get(kind, kind)
    values["tie_word_embeddings"] = bool(getattr(whole, "tie_word_embeddings", False))
    return Config(values, f"{config.where}: its text part")

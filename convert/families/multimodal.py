"""Models that also see: of them, the text part, which is a model of a family.

transformers' configuration fills in what theirs leave out, and knows where each keeps what is of the text. Only models
are here that read a text without a picture as that part alone would: PaliGemma's prompt, for one, sees all of itself.
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
TEXT_TYPES = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}  # three equal positions
TOWERS = r"^(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|connector|image_newline)\b"
RENAMES = (
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^(model\.)?(language_model|text_model)\.(model\.)?", "model."),
)


def text_part(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Configuration and tensors of the text part; as they are where there is nothing else.

    Raises:
        CheckpointError: transformers cannot read the configuration.
    """
    if config.text("model_type") not in MODELS:
        return config, tensors
    from transformers import AutoConfig

    try:
        whole = AutoConfig.for_model(**config.values)
        values = whole.get_text_config().to_dict()
    except Exception as error:  # whatever transformers makes of a configuration
        raise CheckpointError.by(error, config.where, "transformers cannot read it") from error
    values["model_type"] = TEXT_TYPES.get(values["model_type"], values["model_type"])
    values["tie_word_embeddings"] = bool(getattr(whole, "tie_word_embeddings", False))
    return Config(values, f"{config.where}: its text part"), RenamedTensors(tensors, RENAMES, but=TOWERS)

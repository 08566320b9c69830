"""Models that also take pictures: their text part, which is a model of one of the families, and how they see.

transformers' configuration classes fill in defaults and know where each model keeps its text part. A checkpoint without
the tensors of a tower, as some tools write, is its text part alone, which reads a text without a picture as the whole
model would. So is one that is asked for its text part alone (`Config.text_alone`). PaliGemma's does not: each token of
its prompt attends to the whole prompt. So it is never served as its text part alone.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from convert.config.config import Config
from convert.errors import CheckpointError
from convert.families.family import named
from convert.families.unserved import TEXT_ALONE, check_served
from convert.families.vision import VisionFamily, vision_recipes
from convert.families.vision_gemma import gemma3, paligemma
from convert.families.vision_idefics import idefics2, idefics3
from convert.families.vision_idefics1 import idefics1
from convert.families.vision_internvl import internvl
from convert.families.vision_llava import llava
from convert.families.vision_mllama import mllama
from convert.families.vision_qwen import qwen2_5_vl, qwen2_vl, qwen3_vl
from convert.formats.tensors import Tensors
from convert.mapping.part import Recipe
from convert.mapping.renamed_tensors import RenamedTensors
from jaxengine.architecture.model import ModelSpec

# How each model sees.
MODELS: Mapping[str, Callable[[Config], VisionFamily]] = {
    "gemma3": gemma3,
    "idefics": idefics1,
    "idefics2": idefics2,
    "idefics3": idefics3,
    "internvl": internvl,
    "llava": llava,
    "llava_next": llava,
    "mistral3": llava,
    "mllama": mllama,
    "paligemma": paligemma,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen2_vl": qwen2_vl,
    "qwen3_5": qwen3_vl,
    "qwen3_5_moe": qwen3_vl,
    "qwen3_vl": qwen3_vl,
    "qwen3_vl_moe": qwen3_vl,
    "smolvlm": idefics3,
}
# The family of each text part. These parts have three positions for a token, which are equal without a picture.
TEXT_TYPES = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
UNIFIED = "gemma4_unified_text"  # Gemma 4's, without rows for each token and layer, of which it says nothing
TEXT_TYPES |= {UNIFIED: "gemma4_text"}
# How the frequencies of these are shared by a token's three positions, where the configuration does not say it.
QWEN2_SECTIONS, QWEN3_SECTIONS, QWEN3_5_SECTIONS = [16, 24, 24], [24, 20, 20], [11, 11, 10]
SECTIONS = {"qwen2_vl_text": QWEN2_SECTIONS, "qwen2_5_vl_text": QWEN2_SECTIONS}
SECTIONS |= {"qwen3_vl_text": QWEN3_SECTIONS, "qwen3_vl_moe_text": QWEN3_SECTIONS}
SECTIONS |= {"qwen3_5_text": QWEN3_5_SECTIONS, "qwen3_5_moe_text": QWEN3_5_SECTIONS}
# Whatever the configuration says, as in transformers.
INTERLEAVED = (
    "qwen3_vl_text",
    "qwen3_vl_moe_text",
    "qwen3_5_text",
    "qwen3_5_moe_text",
)
WHOLE_PROMPTS = ("paligemma",)  # models that are never served as their text part alone
TOWERS = (
    r"^(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|connector|perceiver_resampler|image_newline)\b"
)
# Of models that are served for their text alone.
OTHERS = r"^(model\.)?(audio_tower|embed_audio|embed_vision|vision_embedder)\b"
RENAMES = (
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^(model\.)?(language_model|text_model)\.(model\.)?", "model."),
)
VISION_RENAMES = ((r"^model\.", ""), (r"^vision_tower\.vision_model\.", "vision_tower."))
LAYER = re.compile(r"\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Eyes:
    """How the model that `config`, with transformers' defaults, describes sees; `tensors` are those of its tower and
    connector.
    """

    family: VisionFamily
    config: Config
    tensors: Tensors | None = None

    def given_to(self, spec: ModelSpec) -> ModelSpec:
        """The text part `spec`, which then sees. Raises CheckpointError."""
        with named(self.config):
            return replace(spec, vision=self.family.spec(self.config, spec.hidden_size))

    def recipes(self, spec: ModelSpec) -> dict[str, Recipe]:
        """Raises CheckpointError: sizes of tower or resampler that no layer has."""
        with named(self.config):
            return vision_recipes(spec, self.family)

    def ignore(self, spec: ModelSpec) -> tuple[str, ...]:
        """The tensors that make no row: the family's, and those of layers behind the last that is run."""
        assert spec.vision is not None and self.tensors is not None
        numbers = {int(found[1]) for name in self.tensors if (found := LAYER.search(name))}
        unused = sorted(n for n in numbers if n >= spec.vision.tower.num_layers)
        beyond = (rf"\.layers\.({'|'.join(map(str, unused))})\.",) if unused and spec.vision.features else ()
        return (*self.family.ignore, *(f"^(?!model\\.).*{each}" for each in beyond))


def text_part(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Configuration and tensors of the text part; unchanged for a model that takes text alone.

    Raises:
        CheckpointError: transformers cannot read the configuration, or the model is not served.
    """
    check_served(config, MODELS)
    if config.text("model_type") not in (*MODELS, *TEXT_ALONE):
        return config, tensors
    return text_config(config), RenamedTensors(tensors, RENAMES, but=f"{TOWERS}|{OTHERS}")


def text_config(config: Config) -> Config:
    """`text_part`'s configuration."""
    check_served(config, MODELS)
    if config.text("model_type") not in (*MODELS, *TEXT_ALONE):
        return config
    whole, values = _by_transformers(config, lambda found: found.get_text_config().to_dict())
    kind = values["model_type"]
    if kind in SECTIONS:
        sections = {"mrope_section": SECTIONS[kind], **values["rope_parameters"]}
        values["rope_parameters"] = {**sections, "mrope_interleaved": kind in INTERLEAVED}
    if kind == UNIFIED:
        values["hidden_size_per_layer_input"] = 0
    values["model_type"] = TEXT_TYPES.get(kind, kind)
    values["tie_word_embeddings"] = bool(getattr(whole, "tie_word_embeddings", False))
    if config.text("model_type") in WHOLE_PROMPTS:  # `Vision.horizon` says so instead
        values.pop("use_bidirectional_attention", None)
    return Config(values, f"{config.where}: its text part")


def eyes_of(config: Config, tensors: Tensors | None = None) -> Eyes | None:
    """How a model sees; None if it does not or must not, or if `tensors` are known and none is of a tower.

    Raises:
        CheckpointError: transformers cannot read the configuration, or it has what is not supported.
    """
    kind = config.text("model_type")
    opened, blind = MODELS.get(kind), config.text_alone
    if config.text_alone and kind in WHOLE_PROMPTS:
        raise config.error("model_type", "is not supported as a text part alone: its prompts are seen whole")
    blind = blind or (tensors is not None and not any(re.search(TOWERS, name) for name in tensors))
    if blind and kind in WHOLE_PROMPTS:
        raise config.error("model_type", "is not supported without the tensors of a vision tower")
    if opened is None or blind:
        return None
    _, values = _by_transformers(config, lambda found: found.to_dict())
    whole = Config(values, config.where)
    if tensors is None:
        return Eyes(opened(whole), whole)
    return Eyes(opened(whole), whole, RenamedTensors(tensors, VISION_RENAMES, only=TOWERS))


def _by_transformers(config: Config, read: Callable[[Any], dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
    """transformers' own configuration, and what `read` finds in it."""
    from transformers import AutoConfig

    try:
        whole = AutoConfig.for_model(**config.values)
        return whole, read(whole)
    except Exception as error:  # whatever transformers raises for a configuration
        raise CheckpointError.by(error, config.where, "transformers cannot read it") from error

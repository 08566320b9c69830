"""The module with which a model was trained to predict one token more (DeepSeek-AI 2024, arXiv 2412.19437, section 2.2;
GLM 4.5; Qwen3-Next). It stands among the model's own tensors, as one more layer:

    model.layers.{n}.enorm, hnorm       [hidden], of embeddings and of hidden states
    model.layers.{n}.eh_proj            [hidden, 2 hidden], of both side by side
    model.layers.{n}.…                  a layer like the model's last, or its last with attention
    model.layers.{n}.shared_head.norm   [hidden]; shared_head.head and embed_tokens are copies of the model's

or beside the model (`Family.module`), where it has

    mtp.pre_fc_norm_embedding, pre_fc_norm_hidden, fc, norm; mtp.layers.0.…

As vLLM and transformers run it, what its head reads is the hidden state for the guess behind.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from convert.config.config import Config
from convert.drafters.stored_drafter import StoredDrafter
from convert.families import FAMILIES, family_of
from convert.families.family import Family, as_stored, drafting_layers, named, refuse, with_family_names
from convert.families.multimodal import text_config, text_part
from convert.formats.tensors import Tensors
from convert.mapping.kv_scales import PATTERNS
from convert.mapping.recipes import recipes
from convert.mapping.renamed_tensors import RenamedTensors
from convert.quantized.tensors import with_weights
from jaxengine.architecture.drafter import DRAFTER, Eagle
from jaxengine.architecture.model import Embedding, Head, ModelSpec

OF_MODULE = {
    "fusion": "eh_proj.weight",
    "embedding_norm": "enorm.weight",
    "feature_norm": "hnorm.weight",
    "final_norm": "shared_head.norm.weight",
}
BESIDE = {
    "fusion": "fc.weight",
    "embedding_norm": "pre_fc_norm_embedding.weight",
    "feature_norm": "pre_fc_norm_hidden.weight",
    "final_norm": "norm.weight",
}
COPIES = (r"\.embed_tokens\.weight$", r"\.shared_head\.head\.weight$")
FUSION, FUSION_BESIDE = "eh_proj.", "fc."  # in front of what is left of the name where the matrix is quantised
MODULE = "mtp."  # in front of the names of one beside the model
FURTHER = r"^mtp\.layers\.[1-9]"  # of one that predicts several tokens


def find_module(config: Config, tensors: Tensors, directory: Path) -> Callable[[ModelSpec], StoredDrafter] | None:
    """What opens the module among `tensors`; None where there is none, or more than one."""
    beside = any(name.startswith(MODULE) for name in tensors)
    text = text_config(config) if beside else config
    if text.text("model_type") not in FAMILIES:
        return None
    there = _is_there(family_of(text), text, tensors)
    return partial(_open, config, tensors, directory) if there else None


def _is_there(family: Family, config: Config, tensors: Tensors) -> bool:
    if family.module:
        there = any(name.startswith(MODULE + FUSION_BESIDE) for name in tensors)
        return there and not any(re.search(FURTHER, name) for name in tensors)
    numbers = drafting_layers(family, config)
    return len(numbers) == 1 and any(f".layers.{numbers[0]}.{FUSION}" in name for name in tensors)


def _open(config: Config, tensors: Tensors, directory: Path, model: ModelSpec) -> StoredDrafter:
    """The module of `model`, in whose `directory` `tensors` are.

    Raises:
        CheckpointError: tensors are missing, or have other shapes than the model's layers; or it has experts, and the
            model none, or an embedding of its own.
    """
    text, tensors = text_part(config, with_weights(config, tensors))
    refuse(text, mtp_use_dedicated_embeddings=False)
    family = family_of(text)
    if family.module:
        number, only = 0, RenamedTensors(tensors, (), only=rf"^{re.escape(MODULE)}")
        family = _beside(family)
    else:
        (number,) = drafting_layers(family, text)
        only = RenamedTensors(with_family_names(family, tensors), (), only=rf"\.layers\.{number}\.")
    family = as_stored(family, model, only, range(number, number + 1))
    with named(text):
        spec = _module_of(model, with_experts=any(".experts." in name for name in only))
    table = {name.removeprefix(DRAFTER): each for name, each in spec.parameters().items()}
    made = recipes(spec.spec, _names(family, number), family.layout, table)
    of_drafter = {f"{DRAFTER}{name}": recipe for name, recipe in made.items()}
    return StoredDrafter(spec, only, of_drafter, directory, (*family.ignore, *COPIES, *PATTERNS))


def _beside(family: Family) -> Family:
    """`family` with the names of the layers of its module, which no pattern of it ignores."""

    def renamed(tensors: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        begin = MODULE + "layers.{i}."
        return {key: tuple(re.sub(r"^.*layers\.\{i\}\.", begin, each) for each in tensors[key]) for key in tensors}

    return replace(family, tensors=renamed(family.tensors), apart=renamed(family.apart), ignore=())


def _module_of(model: ModelSpec, with_experts: bool) -> Eagle:
    kinds = map(model.kind, reversed(range(model.num_layers)))
    last = next(kind for kind in kinds if kind.mixer == "attention")
    layer = replace(
        model,
        num_layers=1,
        kinds=(replace(last, experts=with_experts),),
        linear_attention=None,
        embedding=Embedding(),
        head=Head(),
        final_norm=True,
        vision=None,
        cache_scales=(),
    )
    return Eagle(
        layer,
        model_hidden_size=model.hidden_size,
        model_vocab_size=model.vocab_size,
        usual=1,
        module=True,
        own_embedding=False,
        own_head=False,
        norm_output=True,
    )


def _names(family: Family, number: int) -> dict[str, tuple[str, ...]]:
    layers = {
        name: tuple(each.replace("{i}", str(number)) for each in theirs)
        for name, theirs in family.tensors.items()
        if name.startswith("layers.{i}.")
    }
    if family.module:
        return layers | {name: (MODULE + theirs,) for name, theirs in BESIDE.items()}
    prefix, _, _ = family.tensors["layers.{i}.out"][0].partition("{i}")
    return layers | {name: (f"{prefix}{number}.{theirs}",) for name, theirs in OF_MODULE.items()}

"""The module with which a model was trained to predict one token more (DeepSeek-AI 2024, arXiv 2412.19437, section 2.2;
GLM 4.5; Qwen3-Next). It stands among the model's own tensors, as one more layer:

    model.layers.{n}.enorm, hnorm       [hidden], of embeddings and of hidden states
    model.layers.{n}.eh_proj            [hidden, 2 hidden], of both side by side
    model.layers.{n}.…                  a layer like the model's last, or its last with attention
    model.layers.{n}.shared_head.norm   [hidden]; shared_head.head and embed_tokens are copies of the model's

or beside it, under names that `Family.module` turns into these. As vLLM and transformers run it, what its head reads is
the hidden state for the guess behind.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from convert.compose import as_stored
from convert.config.config import Config
from convert.drafters.stored_drafter import StoredDrafter
from convert.families import FAMILIES, family_of
from convert.families.family import Family, drafting_layers, named, refuse, with_family_names
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
COPIES = (r"\.embed_tokens\.weight$", r"\.shared_head\.head\.weight$")
FUSION = "eh_proj."  # in front of what is left of the name where the matrix is quantised
BESIDE = r"^mtp\."
FURTHER = r"^mtp\.layers\.[1-9]"  # of one that predicts more than a token


def find_module(config: Config, tensors: Tensors, directory: Path) -> Callable[[ModelSpec], StoredDrafter] | None:
    """What opens the module among `tensors`; None where there is none, or more than one."""
    beside = any(re.search(BESIDE, name) for name in tensors)
    text = text_config(config) if beside else config
    if text.text("model_type") not in FAMILIES:
        return None
    family = family_of(text)
    in_layers, numbers = _numbered(family, text, tensors), _numbers(family, text)
    there = len(numbers) == 1 and any(f".layers.{numbers[0]}.{FUSION}" in name for name in in_layers)
    further = beside and any(re.search(FURTHER, name) for name in tensors)
    return partial(_open, config, tensors, directory) if there and not further else None


def _numbers(family: Family, config: Config) -> range:
    """Those of the modules among the model's layers, or of the one beside it if it were there."""
    if not family.module:
        return drafting_layers(family, config)
    layers = config.integer("num_hidden_layers")
    return range(layers, layers + 1)


def _numbered(family: Family, config: Config, tensors: Tensors) -> Tensors:
    """`tensors`; of a model with a module beside it only this, under the names of one more layer."""
    if not family.module:
        return tensors
    (number,) = _numbers(family, config)
    renames = tuple((old, new.replace("{n}", str(number))) for old, new in family.module)
    return RenamedTensors(tensors, renames, only=BESIDE)


def _open(config: Config, tensors: Tensors, directory: Path, model: ModelSpec) -> StoredDrafter:
    """The module of `model`, in whose `directory` `tensors` are.

    Raises:
        CheckpointError: tensors are missing, or have other shapes than the model's layers; or it has experts, and the
            model none, or an embedding of its own.
    """
    text, tensors = text_part(config, with_weights(config, tensors))
    refuse(text, mtp_use_dedicated_embeddings=False)
    family = family_of(text)
    (number,) = _numbers(family, text)
    named_alike = _numbered(family, text, with_family_names(family, tensors))
    only = RenamedTensors(named_alike, (), only=rf"\.layers\.{number}\.")
    family = as_stored(family, model, only, range(number, number + 1))
    with named(text):
        spec = _module_of(model, with_experts=any(".experts." in name for name in only))
    table = {name.removeprefix(DRAFTER): each for name, each in spec.parameters().items()}
    made = recipes(spec.spec, _names(family, number), family.layout, table)
    of_drafter = {f"{DRAFTER}{name}": recipe for name, recipe in made.items()}
    return StoredDrafter(spec, only, of_drafter, directory, (*family.ignore, *COPIES, *PATTERNS))


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
    prefix, _, _ = family.tensors["layers.{i}.out"][0].partition("{i}")
    return layers | {name: (f"{prefix}{number}.{theirs}",) for name, theirs in OF_MODULE.items()}

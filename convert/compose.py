"""From a configuration and tensors to parameters: by the family of the model, or else by transformers' own module."""

import re
from collections.abc import Callable
from dataclasses import replace

from convert.adapters.adapter import Adapter
from convert.adapters.adapter_reader import AdapterReader
from convert.adapters.merged_tensors import MergedTensors
from convert.config.config import Config
from convert.errors import CheckpointError
from convert.families import FAMILIES, family_of
from convert.families.family import (
    Family,
    as_stored,
    check_copies,
    complete_spec,
    drafting_layers,
    named,
    refuse,
    with_family_names,
)
from convert.families.multimodal import RENAMES, Eyes, eyes_of, text_config, text_part
from convert.formats.tensors import Tensors
from convert.hf.traced_source import open_traced
from convert.mapping.composition import ComposedSource
from convert.mapping.kv_scales import PATTERNS, cache_scales
from convert.mapping.recipes import recipes
from convert.mapping.renamed_tensors import RenamedTensors
from convert.mapping.united_tensors import UnitedTensors
from convert.quantized.tensors import with_weights
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource


def compose(config: Config, tensors: Tensors, adapter: Adapter | None = None) -> ParameterSource:
    """The parameters of the checkpoint that `config` describes and `tensors` holds, with `adapter` merged.

    Raises:
        CheckpointError: an unknown model_type, an unsupported feature, or tensors that do not fit the configuration.
    """
    stored = with_weights(config, tensors)
    text, tensors = text_part(config, stored)
    if text.text("model_type") not in FAMILIES:
        if adapter:
            raise text.error("model_type", "has no family here, and only those can have an adapter")
        return open_traced(text, tensors, FAMILIES)
    return compose_as(text, family_of(text), tensors, adapter, eyes_of(config, stored))


def compose_as(
    config: Config, family: Family, tensors: Tensors, adapter: Adapter | None = None, eyes: Eyes | None = None
) -> ComposedSource:
    """`compose` with the names and the layout of `family`, which may differ from those of its checkpoints.

    Args:
        eyes: how the model sees, with its tensors.
    """
    renamed = with_adapter(family, with_family_names(family, tensors), adapter)
    check_copies(family, renamed)
    ignore = (*family.ignore, family.copies, *(rf"\.layers\.{i}\." for i in drafting_layers(family, config)))
    with named(config):
        refuse(config, is_causal=True)  # of embedding models that read a text in both directions
        spec = complete_spec(family.spec(config), family, renamed)
        if _lacks_head(config, spec, family, renamed):
            spec = replace(spec, head=replace(spec.head, tied=True, bias=False, missing=True))
        if spec.head.tied:
            _check_tied(renamed, family)
            # the checkpoint may hold a copy of the embedding as head
            ignore = (*ignore, *map(re.escape, family.tensors["head"]))
        if spec.encoder is None and spec.state_space is None:
            of_layers = RenamedTensors(renamed, (), but="|".join(ignore))  # and not of layers that draft
            spec = replace(spec, cache_scales=cache_scales(of_layers, spec.num_layers))
            ignore = (*ignore, *PATTERNS)
        if eyes is not None:
            spec = eyes.given_to(spec)
    family = as_stored(family, spec, renamed, range(spec.num_layers))
    made = recipes(spec, family.tensors, family.layout)
    if eyes is None or eyes.tensors is None:
        return ComposedSource(spec, renamed, made, ignore)
    seen = UnitedTensors(renamed, eyes.tensors)
    return ComposedSource(spec, seen, made | eyes.recipes(spec), (*ignore, *eyes.ignore(spec)))


def _lacks_head(config: Config, spec: ModelSpec, family: Family, tensors: Tensors) -> bool:
    """Whether the checkpoint is of a model without head, as those for embeddings are. Its class tells it from one whose
    head was lost.
    """
    classes = config.get("architectures") or []
    if not isinstance(classes, list):
        raise config.error("architectures", "must be a list of names")
    headless = any(str(each).endswith("Model") for each in classes)
    return headless and not spec.head.tied and not any(name in tensors for name in family.tensors["head"])


def adapter_reader(config: Config, spec: ModelSpec, find: Callable[[str], Adapter]) -> AdapterReader | None:
    """What reads adapters of the model that `config` describes and `spec` is; None without a family here.

    Adapters have the names and the layout of the family's checkpoints in floats, however the model itself is stored.

    Args:
        find: the adapter of a name.
    """
    config = text_config(config)
    if config.text("model_type") not in FAMILIES:
        return None
    family = family_of(config)
    return AdapterReader(spec, recipes(spec, family.tensors, family.layout), (*RENAMES, *family.renames), find)


def with_adapter(family: Family, tensors: Tensors, adapter: Adapter | None) -> Tensors:
    """`tensors`, under the names of `family`, with `adapter` merged if there is one. Raises CheckpointError."""
    if adapter is None:
        return tensors
    return MergedTensors(tensors, adapter, (*RENAMES, *family.renames), transposed=family.layout.transposed)


def _check_tied(tensors: Tensors, family: Family) -> None:
    """Raises CheckpointError where an adapter would change the head together with the embedding: it was trained on one
    of them. A head that the checkpoint or the adapter has as well is the same.
    """
    (embedding,), (head,) = family.tensors["embedding"], family.tensors["head"]
    if isinstance(tensors, MergedTensors) and head not in tensors and tensors.changes(embedding):
        where = tensors.adapter.directory
        raise CheckpointError(f"{where}: changes the embedding {embedding!r}, which is the head too")

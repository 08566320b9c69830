"""Checkpoints of models that no family here describes: transformers' own module computes with them.

Needs PyTorch, which the extra `hf` installs. Code that a checkpoint brings along is never run. The module, built
without weights, tells which parameters it has. Whether it can be traced is found out by the engine.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from convert.config.config import Config
from convert.errors import CheckpointError
from convert.formats.tensors import Index, Tensors, equal
from convert.hf.conversion import ConvertedTensors
from convert.hf.probe import probe
from convert.mapping.composition import FLOATING
from jaxengine.architecture.model import LayerKind, ModelSpec, Traced, TracedArray
from jaxengine.architecture.parameters import parameter_table
from jaxengine.architecture.weight_format import StoredWeight

BUFFERS = r"(inv_freq|position_ids|attn\.bias|masked_bias)$"  # which older libraries saved

Names = tuple[str, ...]


class TracedSource:
    """A `ParameterSource` whose parameters are the checkpoint's tensors; `names[parameter]` lists the names of each.

    Raises:
        CheckpointError: a tensor is missing, misshapen or unexpected, or two that should be one are not.
    """

    def __init__(
        self, spec: ModelSpec, tensors: Tensors, names: Mapping[str, Names], ignored: Iterable[str] = ()
    ) -> None:
        self.spec = spec
        self._tensors = tensors
        table = parameter_table(spec)
        self._stored = {name: _chosen(tensors, names[name], parameter.shape) for name, parameter in table.items()}
        known, ignored = {name for each in names.values() for name in each}, (*ignored, BUFFERS)
        for name in tensors:  # a tensor without a place: weights that would silently be left out
            if name not in known and not any(re.search(pattern, name) for pattern in ignored):
                raise CheckpointError(f"{tensors.where(name)}: transformers has no place for tensor {name!r}")

    @property
    def dtype(self) -> str:
        return self._tensors.dtype(self._stored["embedding"])

    def read(self, name: str, index: Index) -> np.ndarray:
        stored = self._stored[name]
        return self._tensors.read(stored, self._tensors.shape(stored), index)

    def stored(self, name: str) -> StoredWeight | None:
        return None


def open_traced(config: Config, tensors: Tensors, ours: Iterable[str]) -> TracedSource:
    """The checkpoint that `config` describes and `tensors` holds; its model_type is none of `ours`.

    Raises:
        CheckpointError: transformers does not know the model_type either, the extra is missing, or tensors do not fit.
    """
    module = _module(config, ours)
    try:
        converted = ConvertedTensors(tensors, module)
    except ImportError as error:
        raise config.error("model_type", f"is not supported without a newer transformers ({error})") from error
    shapes, aliases = _arrays(module)
    names = _ends(config, module, converted, aliases)
    ends = {name for each in names.values() for name in each}
    arrays = tuple(TracedArray(each[0], shapes[each[0]]) for each in aliases.values() if not ends & set(each))
    try:
        sizes, head = probe(module)
        spec = ModelSpec(
            **_sizes(module.config.get_text_config()),
            **sizes,
            kinds=(LayerKind(rope=None),),
            head=replace(head, tied="head" not in names, bias="head_bias" in names),
            traced=Traced(json.dumps(config.values), names["embedding"][0], arrays),
        )
    except Exception as error:  # whatever transformers' module raises without weights
        raise CheckpointError.by(
            error, config.where, f"transformers' {type(module).__name__} cannot be served"
        ) from error
    names |= {f"module.{each[0]}": each for each in aliases.values()}
    return TracedSource(spec, converted, names, module._keys_to_ignore_on_load_unexpected or ())


def _arrays(module: Any) -> tuple[dict[str, tuple[int, ...]], dict[int, Names]]:
    """Shapes of the floating parameters and saved buffers, and the names of each, which may have several."""
    arrays = {name: each for name, each in module.state_dict(keep_vars=True).items() if each.is_floating_point()}
    aliases: dict[int, Names] = {}
    for name, array in arrays.items():
        aliases[id(array)] = (*aliases.get(id(array), ()), name)
    return {name: tuple(array.shape) for name, array in arrays.items()}, aliases


def _ends(config: Config, module: Any, tensors: Tensors, aliases: Mapping[int, Names]) -> dict[str, Names]:
    """Names of the embedding, of the head unless it is tied, and of the head's bias."""
    embedding, head = module.get_input_embeddings(), module.get_output_embeddings()
    if embedding is None or head is None:
        raise config.error("model_type", f"has no {'output ' if embedding else ''}embedding in transformers")
    names = {"embedding": aliases[id(embedding.weight)]}
    if head.weight is not embedding.weight:
        names["head"] = aliases[id(head.weight)]
    elif _differ(tensors, names["embedding"]):  # tied by the configuration, different in the checkpoint, which is right
        own = next(f"{name}.weight" for name, each in module.named_modules() if each is embedding)
        names = {"embedding": (own,), "head": tuple(name for name in names["embedding"] if name != own)}
    bias = getattr(head, "bias", None)
    return names if bias is None else names | {"head_bias": aliases[id(bias)]}


def _differ(tensors: Tensors, names: Names) -> bool:
    """Whether two of the tensors `names`, as far as the checkpoint has them, differ."""
    first, *others = [name for name in names if name in tensors] or [""]
    return not all(equal(tensors, first, name) for name in others)


def _module(config: Config, ours: Iterable[str]) -> Any:
    """transformers' module of the checkpoint; its weights are shapes without data."""
    known = f"is not supported; supported are {', '.join(ours)}"
    if not all(map(find_spec, ("torch", "torchax"))):
        raise config.error("model_type", f"{known}, and with the extra 'hf' more of transformers' models")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    refused = config.error("model_type", f"{known}, and the causal models of transformers")
    if config.text("model_type") not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise refused
    try:
        described = AutoConfig.for_model(**config.values)
        described._experts_implementation = (
            "batched_mm"  # the only implementation that does not branch on a router's values
        )
        encoder = getattr(
            described, "is_encoder_decoder", False
        )  # read before the decoder is built alone, which changes it
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(described)
    except Exception as error:  # whatever transformers raises for a configuration
        raise CheckpointError.by(error, config.where, "transformers cannot build its model") from error
    if encoder:
        raise refused
    return module


def _sizes(config: Any) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_hidden_layers,
        "ffn_size": 1,  # unused: the module has its own
        "max_positions": config.max_position_embeddings,
    }


def _chosen(tensors: Tensors, names: Names, shape: tuple[int, ...]) -> str:
    """Which of `names` the checkpoint uses."""
    found = [name for name in names if name in tensors]
    if not found:
        raise CheckpointError(f"{tensors.where(next(iter(tensors)))}: tensor {names[0]!r} is missing")
    where, name = tensors.where(found[0]), found[0]
    if tensors.shape(name) != shape:
        has, wanted = list(tensors.shape(name)), list(shape)
        raise CheckpointError(f"{where}: {name!r} has shape {has}, transformers expects {wanted}")
    if tensors.dtype(name) not in FLOATING:
        raise CheckpointError(f"{where}: {name!r} has type {tensors.dtype(name)}, not a floating one")
    if _differ(tensors, names):
        raise CheckpointError(f"{where}: {' and '.join(map(repr, found))} are one in transformers, and differ")
    return name

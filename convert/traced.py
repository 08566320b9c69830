"""Models that none of our families describes: the checkpoint as it is, for transformers' own module to compute with.

Needs PyTorch, which the extra `hf` installs. Code that a checkpoint brings along is never run. What the module is made
of is asked of the module itself, without weights; whether it can be traced, the engine sees.
"""

import json
import re
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import numpy as np

from convert.composition import FLOATING
from convert.config import Config
from convert.errors import CheckpointError
from convert.formats.tensors import Index, Tensors
from jaxengine.model.parameters import parameter_table
from jaxengine.model.spec import Head, LayerKind, ModelSpec, Traced, TracedArray

BUFFERS = re.compile(r"(inv_freq|position_ids|attn\.bias|masked_bias)$")  # that older libraries saved along
MAX_SAID = 300  # characters of somebody else's error


class TracedSource:
    """A `ParameterSource` whose parameters are the checkpoint's tensors."""

    def __init__(self, spec: ModelSpec, tensors: Tensors) -> None:
        assert spec.traced is not None
        self.spec = spec
        self._tensors = tensors
        self._names = {f"module.{array.name}": array.name for array in spec.traced.arrays}
        self._names |= {"embedding": spec.traced.embedding, "head": spec.traced.head}
        self._names["head_bias"] = spec.traced.head.removesuffix("weight") + "bias"
        for name, parameter in parameter_table(spec).items():
            _check(tensors, self._names[name], parameter.shape)
        self._refuse_others()

    def _refuse_others(self) -> None:
        """A tensor without a place would be weights that are silently left out. A tied head may be stored twice."""
        known, head = set(self._names.values()), self._tensors.shape(self._names["embedding"])
        for name in self._tensors:
            twice = self.spec.head.tied and self._tensors.shape(name) == head
            if name not in known and not twice and not BUFFERS.search(name):
                raise CheckpointError(f"{self._tensors.where(name)}: transformers has no place for tensor {name!r}")

    @property
    def dtype(self) -> str:
        return self._tensors.dtype(self._names["embedding"])

    def read(self, name: str, index: Index) -> np.ndarray:
        stored = self._names[name]
        return self._tensors.read(stored, self._tensors.shape(stored), index)


def traced(config: Config, tensors: Tensors, ours: Iterable[str]) -> TracedSource:
    """The checkpoint that `config` describes and `tensors` holds, its model_type being none of `ours`.

    Raises:
        CheckpointError: transformers does not know it either, the extra is missing, or tensors do not fit.
    """
    module = _module(config, ours)
    embedding, head = module.get_input_embeddings(), module.get_output_embeddings()
    if embedding is None or head is None:
        raise config.error("model_type", f"has no {'output ' if embedding else ''}embedding in transformers")
    tied, bias = head.weight is embedding.weight, getattr(head, "bias", None)
    name_of = {id(parameter): name for name, parameter in module.named_parameters()}
    ends = [name_of[id(array)] for array in (embedding.weight, head.weight, bias) if array is not None]
    arrays = tuple(TracedArray(name, shape) for name, shape in _saved(module).items() if name not in ends)
    description = Traced(json.dumps(config.values), ends[0], ends[1], arrays)
    try:
        spec = ModelSpec(
            **_sizes(module.config.get_text_config()),
            kinds=(LayerKind(rope=None),),
            head=Head(tied=tied, bias=bias is not None),
            traced=description,
        )
    except (AttributeError, ValueError) as error:
        raise CheckpointError(f"{config.where}: {error}") from error
    return TracedSource(spec, tensors)


def _module(config: Config, ours: Iterable[str]) -> Any:
    """transformers' module of the checkpoint, its weights being shapes without data."""
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
        encoder = getattr(described, "is_encoder_decoder", False)  # building its decoder alone changes that
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(described)
    except Exception as error:  # whatever transformers makes of a configuration
        said = (str(error).splitlines() or [type(error).__name__])[0][:MAX_SAID]
        raise CheckpointError(f"{config.where}: transformers cannot build its model: {said}") from error
    if encoder:
        raise refused
    return module


def _saved(module: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters, each once, and of the floating buffers that are saved with them."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = {name: each for name, each in module.state_dict().items() if name not in parameters}
    kept = {**dict(module.named_parameters()), **{n: each for n, each in buffers.items() if each.is_floating_point()}}
    return {name: tuple(array.shape) for name, array in kept.items()}


def _sizes(config: Any) -> dict[str, Any]:
    heads = config.num_attention_heads
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_hidden_layers,
        "num_heads": heads,
        "num_kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "ffn_size": getattr(config, "intermediate_size", None) or 1,
        "max_positions": config.max_position_embeddings,
    }


def _check(tensors: Tensors, name: str, shape: tuple[int, ...]) -> None:
    if name not in tensors:
        raise CheckpointError(f"{tensors.where(next(iter(tensors)))}: tensor {name!r} is missing")
    if tensors.shape(name) != shape:
        found, wanted = list(tensors.shape(name)), list(shape)
        raise CheckpointError(f"{tensors.where(name)}: {name!r} has shape {found}, transformers expects {wanted}")
    if tensors.dtype(name) not in FLOATING:
        raise CheckpointError(f"{tensors.where(name)}: {name!r} has type {tensors.dtype(name)}, not a floating one")

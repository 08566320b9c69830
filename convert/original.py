"""A model under the names that its authors gave its tensors, beside the parameters that the engine makes of them.

What is written for other programs is written so. A GGUF file has other names: a Llama in one is given back those of
Llama's checkpoints, in f16. What is not a checkpoint in floats of a family is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convert import checkpoint
from convert.compose import with_adapter
from convert.config.config import Config, read_json
from convert.errors import CheckpointError
from convert.families import FAMILIES, family_of
from convert.families.family import with_family_names
from convert.families.multimodal import MODELS
from convert.formats.gguf import GgufFile
from convert.formats.shards import open_tensors
from convert.formats.tensors import Tensors
from convert.llama_cpp.config import config_of
from convert.mapping.decomposition import DecomposedTensors, tensor_rows
from convert.mapping.part import Recipe
from convert.mapping.recipes import recipes
from convert.source import OpenModel
from jaxengine.architecture.parameters import ParameterSource, parameter_table

CLASSES = {"llama": "LlamaForCausalLM"}  # of GGUF files that are given names


@dataclass(frozen=True)
class Original:
    """
    source: the parameters.
    recipes: which of `tensors` each is made of.
    config: config.json.
    files: directories of tokenizer files and others that go with the weights; a later one's win.
    """

    source: ParameterSource
    recipes: Mapping[str, Recipe]
    tensors: Tensors
    config: dict[str, Any]
    files: tuple[Path, ...]

    def matrices(self, name: str) -> dict[str, tuple[int, int]]:
        """The tensors that make matrix `name`, and for each [out, in], however it is stored."""
        parts = self.recipes[name].parts
        return {part.tensor: (part.stored[::-1] if part.transposed else part.stored) for part in parts}  # type: ignore[misc]

    def rows(self, name: str, values: np.ndarray) -> dict[str, np.ndarray]:
        """What each of those tensors has of `values` [out, …], whose rows are those of parameter `name`."""
        parameter = parameter_table(self.source.spec)[name]
        outputs = parameter.shape[: len(parameter.shape) - parameter.inputs]
        return tensor_rows(self.recipes[name], values.reshape(*outputs, *values.shape[1:]), len(outputs))


def original_of(model: OpenModel) -> Original:
    """
    Raises:
        CheckpointError: its weights are quantised or in the engine's own layout, it takes pictures, or it is of no
            family here.
    """
    if model.checkpoint.is_file():
        return _of_gguf(model)
    if model.quantization:
        raise CheckpointError(f"{model.model_id}: its weights are quantised already, by {model.quantization}")
    if (model.checkpoint / checkpoint.MANIFEST).is_file():
        raise CheckpointError(f"{model.checkpoint}: is in the engine's own layout; name what it was converted from")
    config = Config.load(model.checkpoint / "config.json")
    if (kind := config.text("model_type")) in MODELS:
        raise config.error("model_type", "takes pictures too; only models of text can be written")
    if kind not in FAMILIES:
        raise config.error("model_type", "has no family here")
    family, spec = family_of(config), model.source.spec
    tensors = with_adapter(family, with_family_names(family, open_tensors(model.checkpoint)), model.adapter)
    made = recipes(spec, family.tensors, family.layout)
    files = (model.checkpoint, model.directory) if model.adapter else (model.checkpoint,)
    return Original(model.source, made, tensors, read_json(model.checkpoint / "config.json"), files)


def _of_gguf(model: OpenModel) -> Original:
    config, _ = config_of(GgufFile(model.checkpoint))
    kind = config.text("model_type")
    if kind not in CLASSES:
        known = ", ".join(CLASSES)
        raise config.error("model_type", f"must be {known} in a GGUF file; name the checkpoint that it was made of")
    family = family_of(config)
    made = recipes(model.source.spec, family.tensors, family.layout)
    path = model.directory / "generation_config.json"
    ends = read_json(path) if path.is_file() else {}
    rope = {key: value for key, value in config.values["rope_parameters"].items() if key != "rotary_dim"}  # the head's
    values: dict[str, Any] = {"architectures": [CLASSES[kind]], "hidden_act": "silu"}
    values |= {"dtype": "float16", "torch_dtype": "float16"}
    values |= {**config.values, "rope_theta": rope["rope_theta"], "rope_parameters": rope, **ends}  # old and new names
    return Original(model.source, made, DecomposedTensors(model.source, made, "float16"), values, (model.directory,))
